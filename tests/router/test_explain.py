"""Dry runs of placements."""

import asyncio

import pytest

from tests.fakes.engines import slow
from tests.router.conftest import signature
from tests.router.test_routing import GOOD
from tests.support.router import AUTH


async def ask(router, body):
    return await router.client.post(f"{router.admin}/eldr/v1/explain", json=body, headers=AUTH)


async def test_a_router_that_has_seen_nothing_tells_what_it_would_do(start):
    """The first signature begins the unions; one that is only asked about begins none, and is answered as if it did."""
    async with start("p0", "d0", "d1") as router:
        body = {"eldr": signature(1, 0, 0, 3, 0, 0, 4, 0)}
        got = (await ask(router, body)).json()
        assert (got["policy"], got["reason"]) == ("MarginalUnion", "union")
        assert router.app.services.placer.locality.unions is None
        router["p0"].eldr = body["eldr"]
        await router.post()
        assert router.counter("placements", policy="MarginalUnion", reason="union") == 1


async def test_similarities_and_the_band_are_told(start, tmp_path):
    file = tmp_path / "c.eldr"
    file.write_bytes(GOOD)
    async with start("p0", "d0", "d1", settings={"centroids": file}, policy="ELDR", tau=0.1) as router:
        got = (await ask(router, {"eldr": signature(4, 0, 0, 0, 0, 0, 0, 4)})).json()
        assert (got["policy"], got["reason"]) == ("ELDR", "similarity")
        rows = {row["name"]: row for row in got["engines"]}
        best = max(rows.values(), key=lambda row: row["similarity"])
        assert got["choice"] == best["name"]
        assert best["in_band"]
        router["p0"].eldr = signature(4, 0, 0, 0, 0, 0, 0, 4)
        assert (await router.post()).headers["x-eldr-decode"] == got["choice"], (
            "what is explained is what happens"
        )


async def test_what_the_client_would_be_told(start):
    async with start("p0", "d0", max_in_flight=1) as router:
        assert (await ask(router, {"sequences": 2})).json()["choice"] == "d0", "one place is enough"
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream():
            got = (await ask(router, {"sequences": 2})).json()
            assert got["choice"] is None
            assert got["error"]["status"] == 429
            release.set()
        assert (await ask(router, {"eldr": {"v": 9}})).json()["signature"] == "wire_error"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"sequences":0}', b'{"sequences":true}', b'{"sequences":null}']
)
async def test_nonsense_is_told_so(start, body):
    async with start("p0", "d0") as router:
        got = await router.client.post(f"{router.admin}/eldr/v1/explain", content=body, headers=AUTH)
        assert got.status_code == 400
        assert (await router.client.get(f"{router.admin}/eldr/v1/explain", headers=AUTH)).status_code == 405
        assert (await router.client.post(f"{router.admin}/eldr/v1/explain")).status_code == 401

"""Centroid sets, readiness, the admin port, peers, drain: inside one event loop."""

import asyncio
import hashlib

import httpx
import numpy as np
import pytest

from eldr import centroids, contract
from eldr.centroids import CentroidSet
from eldr.clients import UNBOUNDED
from eldr_router.app import App
from eldr_router.placement.table import RoutingDocument, SetRef
from eldr_router.settings import Settings
from eldr_router.sources.routing import MissingError, Routing
from tests.fakes.engines import slow
from tests.router.conftest import signature, until
from tests.support.files import put
from tests.support.router import AUTH, TOKEN


def make_set(k: int = 2, model: str = "m", seed: int = 0) -> CentroidSet:
    centers = np.random.default_rng(seed).random((k, 8)).astype(np.float32)
    centers[:, :k] += 3 * np.eye(k, dtype=np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    return CentroidSet(
        model=model,
        n_layers=2,
        n_experts=4,
        top_k=2,
        kept=(0, 1),
        weighting="counts",
        weights=np.ones((2, 4), dtype=np.float32),
        centers=centers,
        samples=10,
        created=1.0,
        rho=0.5,
    )


def ref(data: bytes, fit: str, k: int = 2) -> SetRef:
    return SetRef(fit, centroids.digest(data), k)


class Store:
    """Where sets come from."""

    def __init__(self):
        self.data: dict[str, bytes] = {}
        self.asked: list[str] = []

    async def fetch(self, wanted: SetRef) -> bytes:
        self.asked.append(wanted.fit)
        if wanted.fit not in self.data:
            raise MissingError(f"shard of {wanted.fit}: 404: not found")
        return self.data[wanted.fit]


@pytest.fixture
async def routing(tmp_path):
    app = App(Settings(workers=tmp_path / "none"))
    task = asyncio.ensure_future(app.routing.run())
    app.routing.set_endpoints("decode", [])
    yield app.routing
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await app.stop()


async def test_a_change_of_policy_leaves_a_line_in_the_log(routing: Routing, caplog):
    def lines():
        return [record.getMessage() for record in caplog.records if "places by" in record.getMessage()]

    caplog.set_level("INFO")
    for policy in ("MarginalUnion", "JSQ", "JSQ", "RoundRobin"):
        routing.set_document(RoutingDocument(policy=policy), None)
        await until(lambda policy=policy: routing.table.document.policy == policy, policy)
    assert lines() == ["places by JSQ, before by MarginalUnion", "places by RoundRobin, before by JSQ"]


async def test_two_phases(routing: Routing):
    store = Store()
    first, second = (centroids.dump(make_set(seed=seed)) for seed in (1, 2))
    store.data = {"a": first, "b": second}
    routing.set_document(
        RoutingDocument(policy="ELDR", model="m", epoch=1, active=ref(first, "a")), store.fetch
    )
    await until(lambda: routing.table.epoch == 1, "the first set to be active")
    assert routing.table.active.fit == "a"
    before = routing.table
    routing.set_document(
        RoutingDocument(
            policy="ELDR", model="m", epoch=1, tau=0.5, active=ref(first, "a"), staged=ref(second, "b")
        ),
        store.fetch,
    )
    await until(lambda: routing.staged, "the staged set to be loaded")
    assert routing.staged.fit == "b"
    assert routing.table.centroids is before.centroids, "staging changes nothing"
    assert routing.table.policy.tau == 0.5, "settings do not wait for sets"
    routing.set_document(RoutingDocument(model="m", epoch=2, active=ref(second, "b")), store.fetch)
    await until(lambda: routing.table.epoch == 2, "the switch")
    assert routing.table.active.fit == "b"
    assert store.asked == ["a", "b"], "an activation loads nothing again"
    assert before.active.fit == "a", "a request under way keeps its table"
    routing.set_document(RoutingDocument(policy="ELDR", model="m", epoch=3), store.fetch)
    await until(lambda: routing.table.epoch == 3, "no centroids")
    assert routing.table.policy_in_effect == "JSQ"


def damaged(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


GOOD = centroids.dump(make_set())


def newer(data: bytes) -> bytes:
    """A sound file of a later format."""
    body = data[:-32].replace(b'"version":1', b'"version":2')
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("data", "wanted", "reason"),
    [
        (GOOD[:-100], ref(GOOD[:-100], "x"), "truncated"),
        (damaged(GOOD), ref(damaged(GOOD), "x"), "digest"),
        (damaged(GOOD), ref(GOOD, "x"), "digest"),
        (GOOD, ref(GOOD, "x", k=3), "2 centroids"),
        (centroids.dump(make_set(model="other")), ref(centroids.dump(make_set(model="other")), "x"), "other"),
        (
            newer(GOOD),
            ref(newer(GOOD), "x"),
            "upgrade",
        ),
        (b"nonsense", ref(b"nonsense", "x"), "not a centroid file"),
    ],
)
async def test_a_bad_set_is_refused_and_the_old_one_serves_on(routing: Routing, data, wanted, reason):
    store = Store()
    old = centroids.dump(make_set(seed=9))
    store.data = {"old": old, "x": data}
    routing.set_document(RoutingDocument(model="m", epoch=4, active=ref(old, "old")), store.fetch)
    await until(lambda: routing.table.epoch == 4, "the old set")
    routing.set_document(
        RoutingDocument(model="m", epoch=4, active=ref(old, "old"), staged=wanted), store.fetch
    )
    await until(lambda: routing.refused, "the refusal")
    ((refused, why),) = routing.refused
    assert refused == wanted
    assert reason in why
    assert routing.staged is None
    routing.set_document(RoutingDocument(model="m", epoch=5, active=wanted), store.fetch)
    await until(lambda: routing.table.document.epoch == 5, "the settings of the new epoch")
    assert (routing.table.epoch, routing.table.active.fit) == (4, "old")
    assert routing.settled, "a refused set must not hold the router back"
    routing.set_document(RoutingDocument(model="m", epoch=6, active=ref(old, "old")), store.fetch)
    await until(lambda: not routing.refused, "the refusal to be forgotten")


async def test_a_missing_shard_is_tried_again_and_reported_when_it_stays_away(routing: Routing, monkeypatch):
    from eldr_router.sources import routing as module

    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.02)
    store = Store()
    routing.set_document(RoutingDocument(model="m", epoch=1, active=ref(GOOD, "late")), store.fetch)
    await until(lambda: len(store.asked) > 2, "several tries")
    assert not routing.refused, "a fresh Role takes a moment"
    assert not routing.settled
    monkeypatch.setattr(module, "_MISSING_SECONDS", 0.0)
    assert "404" in routing.refused[0][1]
    assert routing.settled
    store.data["late"] = GOOD
    await until(lambda: routing.table.epoch == 1, "the set to be loaded at last")
    assert not routing.refused


async def test_ready_only_with_a_table_in_effect(tmp_path):
    app = App(Settings(workers=tmp_path / "none"))
    try:
        app.routing.set_endpoints("decode", [])
        app.routing.set_document(RoutingDocument(model="m"), Store().fetch)
        assert not app.is_ready(), "the limits of the table are not in effect yet"
        app.routing._reconcile()
        assert app.is_ready()
    finally:
        await app.stop()


@pytest.mark.slow
async def test_ready_waits_for_the_active_set_but_not_for_ever(tmp_path):
    app = App(Settings(workers=tmp_path / "none", ready_seconds=2.0))
    try:
        assert not app.is_ready()
        app.routing.set_endpoints("decode", [])
        app.routing.set_document(RoutingDocument(model="m", active=ref(GOOD, "a")), Store().fetch)
        assert not app.is_ready(), "the set is neither loaded nor refused"
        await until(lambda: app._loop.time() - app._started > 2.0, "time to be up")
        assert app.is_ready()
        app.draining = True
        assert not app.is_ready()
    finally:
        await app.stop()


@pytest.mark.slow
async def test_a_centroid_file_routes_and_its_successor_takes_over(start, tmp_path):
    file = tmp_path / "c.eldr"
    file.write_bytes(GOOD)
    async with start("p0", "d0", "d1", settings={"centroids": file}, policy="ELDR") as router:
        state = await router.state()
        assert (state["policy"], state["epoch"], state["active"]["fit"]) == ("ELDR", 1, "c")
        for values, name in (((9, 0, 0, 0, 0, 0, 0, 0), "d0"), ((0, 9, 0, 0, 0, 0, 0, 0), "d1")) * 3:
            router["p0"].eldr = signature(*values)
            assert (await router.post()).headers["x-eldr-decode"] == name
        assert router.counter("placements", policy="ELDR", reason="similarity") == 6
        put(file, GOOD[:-5])
        await until(lambda: router.app.routing.refused, "the broken file to be refused")
        assert (await router.state())["epoch"] == 1
        put(file, centroids.dump(make_set(seed=5)))
        await until(lambda: router.app.services.table.epoch == 3, "the new set")
        assert (await router.state())["refused"] == []


async def test_what_requests_look_like_to_a_set_is_counted(start, tmp_path):
    file = tmp_path / "c.eldr"
    file.write_bytes(GOOD)
    async with start("p0", "d0", "d1", settings={"centroids": file}, policy="ELDR") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        router["p0"].eldr = signature(9, 0, 0, 0, 0, 0, 0, 0)
        streaming = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router.in_flight()["d0"], "the stream to start")
        router["p0"].eldr = signature(0, 9, 0, 0, 0, 0, 0, 0)
        assert (await router.post()).headers["x-eldr-decode"] == "d1"
        traffic = (await router.state())["traffic"]
        assert (traffic["requests"], traffic["clusters"], traffic["outside_band"]) == (2, [1, 1], 0)
        assert (traffic["busiest_in_flight"], traffic["mean_in_flight"]) == (1, 0.5), (
            "d0 had one before the second"
        )
        release.set()
        await streaming


@pytest.mark.slow
@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError("no room"), KeyError("rho")])
async def test_whatever_goes_wrong_with_a_file_is_a_refusal_and_the_next_file_is_read(
    start, tmp_path, monkeypatch, error
):
    file, load = tmp_path / "c.eldr", centroids.load
    bad = centroids.dump(make_set(seed=7))
    monkeypatch.setattr(centroids, "load", lambda data: fail(error) if data == bad else load(data))
    file.write_bytes(bad)
    async with start("p0", "d0", "d1", settings={"centroids": file}, policy="ELDR") as router:
        await until(lambda: router.app.routing.refused, "the refusal")
        (refused,) = (await router.state())["refused"]
        assert type(error).__name__ in refused["reason"]
        assert str(error) in refused["reason"]
        assert (await router.post()).status_code == 200
        put(file, GOOD)
        await until(lambda: router.app.services.table.epoch == 2, "the sound file")
        assert (await router.state())["refused"] == []


def fail(error: Exception):
    raise error


async def test_the_admin_port_is_guarded(start):
    async with start("p0", "d0") as router:
        get = router.client.get
        for path in (contract.PATH_STATE, contract.PATH_UNIONS, contract.PATH_SIGLOG, "/nothing"):
            wrong = (
                {"authorization": "Bearer wrong"},
                {"authorization": TOKEN},
                {contract.HEADER_ADMIN_TOKEN: "wrong"},
            )
            for headers in ({}, *wrong, {contract.HEADER_ADMIN_TOKEN: ""}):
                assert (await get(router.admin + path, headers=headers)).status_code == 401
            assert (await get(router.url + path, headers=AUTH)).status_code == 404, "never on the client port"
        assert (await get(router.admin + "/nothing", headers=AUTH)).status_code == 404
        proxied = {contract.HEADER_ADMIN_TOKEN: TOKEN}
        assert (await get(router.admin + contract.PATH_STATE, headers=proxied)).status_code == 200
        assert (await router.client.post(router.admin + contract.PATH_STATE, headers=AUTH)).status_code == 405
        await router.post()
        text = (await get(router.admin + contract.PATH_METRICS)).text
        assert 'eldr_router_requests_total{outcome="ok"} 1.0' in text
        assert 'eldr_router_in_flight{endpoint="d0",role="decode"} 0.0' in text


@pytest.mark.slow
async def test_series_of_engines_that_went_are_removed(start):
    async with start("p0", "d0", "d1") as router:
        for _ in range(2):
            await router.post()
        gone = router.engines.pop("d1")
        await router.configure()
        text = router.app.services.telemetry.metrics.exposition().decode()
        assert 'placed_total{endpoint="d0"}' in text
        assert '"d1"' not in text
        router.engines["d1"] = gone


async def test_drain_finishes_streams_and_refuses_newcomers(start):
    async with start("p0", "d0", settings={"drain_seconds": 60.0}) as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        streaming = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router.in_flight()["d0"], "the stream to start")
        idle = await router.connect()
        await until(lambda: len(router.app.clients.connections) == 2, "an idle connection")
        drain = asyncio.ensure_future(router.app.drain())
        assert await asyncio.wait_for(idle[0].read(), 30) == b"", "idle connections are closed"
        idle[1].close()
        assert (await router.state())["draining"] is True
        async with httpx.AsyncClient(limits=UNBOUNDED) as other:
            with pytest.raises(httpx.ConnectError):
                await other.get(f"{router.url}/ready")
        assert not drain.done()
        release.set()
        assert (await streaming).text.endswith("[DONE]\n\n")
        await asyncio.wait_for(drain, 30)


@pytest.mark.slow
async def test_drain_says_goodbye_before_it_closes(start):
    async with start("p0", "d0", settings={"lame_duck_seconds": 4.0}) as router:
        drain = asyncio.ensure_future(router.app.drain())
        await asyncio.sleep(0)
        assert (await router.client.get(f"{router.url}/ready")).status_code == 503
        assert (await router.post()).status_code == 200, "requests already on their way are served"
        await asyncio.wait_for(drain, 30)


async def test_drain_has_an_end(start):
    async with start("p0", "d0", settings={"drain_seconds": 0.2}) as router:
        router["d0"].script.append(slow(asyncio.Event()))
        task = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router.in_flight()["d0"], "the stream to start")
        await asyncio.wait_for(router.app.drain(), 30)
        assert router.app.clients.busy == 1
        router.app.clients.abort()
        await asyncio.gather(task, return_exceptions=True)

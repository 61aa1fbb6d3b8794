"""The policy Domain on a live router: engines divided by hand, requests that say where they belong."""

from collections import Counter

import pytest

from tests.fakes.engines import reset
from tests.router.test_explain import ask

ENGINES = ("p0", "d0", "d1", "d2", "d3")
POLICY = {"policy": "Domain", "domains": [{"name": "code", "share": 1}, {"name": "law", "share": 3}]}
CODE, LAW = {"d3"}, {"d0", "d1", "d2"}


async def went(router, domain: str | None, times: int = 12) -> Counter:
    headers = {} if domain is None else {"x-eldr-domain": domain}
    answers = [await router.post(headers=headers) for _ in range(times)]
    assert {answer.status_code for answer in answers} == {200}
    return Counter(answer.headers["x-eldr-decode"] for answer in answers)


async def test_requests_stay_on_the_engines_of_their_domain(start):
    async with start(*ENGINES, **POLICY) as router:
        assert (await went(router, "code")).keys() == CODE
        law = await went(router, "law")
        assert law.keys() == LAW
        assert max(law.values()) == 4, "the fewest in flight, in turn"
        assert router.counter("placements", policy="Domain", reason="domain") == 24
        for domain in (None, "poems", ""):
            assert (await went(router, domain)).keys() == CODE | LAW
        assert router.counter("placements", policy="Domain", reason="no_domain") == 36
        assert (await router.state())["policy"] == "Domain"
        for name in ("p0", *CODE, *LAW):
            assert all("x-eldr-domain" not in seen.headers for seen in router[name].requests)


async def test_requests_sent_whole_stay_there_too(start):
    async with start("d0", "d1", **POLICY) as router:  # no prefill engine
        assert (await went(router, "law")).keys() == {"d0"}
        assert (await went(router, "code")).keys() == {"d1"}


async def test_a_domain_whose_engines_are_gone_may_go_anywhere(start):
    async with start(*ENGINES, **POLICY) as router:
        router["d3"].script += [reset] * 3
        answer = await router.post(headers={"x-eldr-domain": "code"})
        assert answer.status_code == 200
        assert answer.headers["x-eldr-decode"] in LAW


@pytest.mark.slow
async def test_what_is_explained_is_what_happens(start):
    async with start(*ENGINES, **POLICY) as router:
        got = (await ask(router, {"domain": "code"})).json()
        assert (got["policy"], got["reason"], got["choice"], got["candidates"]) == (
            "Domain",
            "domain",
            "d3",
            1,
        )
        assert {row["name"]: row["domain"] for row in got["engines"]} == dict.fromkeys(LAW, "law") | {
            "d3": "code"
        }
        got = (await ask(router, {})).json()
        assert (got["reason"], got["candidates"]) == ("no_domain", 4)
        assert (await ask(router, {"domain": 5})).status_code == 400
        await router.configure(policy="JSQ")
        got = (await ask(router, {"domain": "code"})).json()
        assert {row["domain"] for row in got["engines"]} == {None}

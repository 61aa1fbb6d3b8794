"""Which engines get no requests for a while, and when they do again."""

import asyncio
import time

import pytest

from eldr.contract import PATH_HEALTH
from eldr_router.net.fetch import fetch
from tests.fakes.engines import (
    CLIENT_ERROR,
    Exchange,
    answer,
    decode,
    draining,
    error_event,
    hang,
    prefill,
    reset,
    slow,
    token_event,
)
from tests.router.conftest import DEADLINE, until

DEAF = 1.5
"""Seconds, in these tests."""


@pytest.fixture(autouse=True)
def unprobed() -> None:
    """Here engines are asked in their turn."""


@pytest.mark.slow
async def test_an_ejected_engine_comes_back(start):
    async with start("p0", "d0", "d1") as router:
        await router["d0"].refuse()
        while not router.counter("retries", leg="decode", cause="refused"):
            assert (await router.post()).status_code == 200
        await router["d0"].start()
        served = set()
        end = time.monotonic() + 30
        while served != {"d0", "d1"}:
            assert time.monotonic() < end
            served.add((await router.post()).headers["x-eldr-decode"])
            await asyncio.sleep(0.01)


async def healthy(router):
    return [engine["healthy"] for engine in (await router.state())["decode"]]


async def fail_once(router):
    """Send requests, all served, until one met a failure at a decode engine."""
    before = router.counter("retries", leg="decode")
    while router.counter("retries", leg="decode") == before:
        assert (await router.post(stream=True)).status_code == 200


@pytest.mark.usefixtures("long_ejections")
@pytest.mark.parametrize("fault", [answer(503, {}), draining])
async def test_an_engine_that_takes_no_requests_is_left_alone(start, fault):
    async with start("p0", "d0", "d1") as router:
        router["d0"].script.extend([fault] * 50)
        await fail_once(router)
        assert await healthy(router) == [False, True]
        for _ in range(8):
            assert (await router.post(stream=True)).headers["x-eldr-decode"] == "d1"
        assert len(router["d0"].requests) == 1


@pytest.mark.usefixtures("long_ejections")
@pytest.mark.parametrize("fault", [answer(500, {}), error_event])
async def test_an_engine_that_goes_on_failing_is_left_alone(start, fault):
    async with start("p0", "d0", "d1") as router:
        router["d0"].script.extend([fault] * 50)
        for expected in (True, True, False):
            await fail_once(router)
            assert await healthy(router) == [expected, True]
        for _ in range(8):
            assert (await router.post(stream=True)).headers["x-eldr-decode"] == "d1"
        assert len(router["d0"].requests) == 3


@pytest.mark.usefixtures("long_ejections")
async def test_a_prefill_engine_whose_pulls_fail_is_left_alone_and_no_decode_engine_is(start):
    """As with an unreachable side channel: it prefills, and every decode engine fails to pull."""
    async with start("p0", "p1", "d0", "d1", "d2") as router:

        async def pull(exchange):
            broken = exchange.seen.body["kv_transfer_params"]["remote_engine_id"] == "p0"
            await (answer(500, {}) if broken else decode)(exchange)

        router.play(pull, times=100, at=("d0", "d1", "d2"))
        for i in range(24):
            assert (await router.post(prompt=f"prompt {i}")).status_code == 200
        assert len(router["p0"].requests) <= 3
        assert await healthy(router) == [True] * 3


@pytest.mark.usefixtures("long_ejections")
async def test_a_prefill_engine_that_takes_no_requests_costs_no_attempt(start):
    async with start("p0", "d0") as router:
        router["p0"].script.extend([answer(503, {})] * 9)
        for _ in range(4):
            assert (await router.post()).status_code == 200
        assert router.counter("whole", reason="prefill_refused") == 4


@pytest.mark.usefixtures("long_ejections")
async def test_a_prefill_engine_that_goes_on_failing_is_left_alone(start):
    async with start("p0", "p1", "d0") as router:
        router["p0"].script.extend([answer(500, {})] * 50)
        for i in range(24):
            assert (await router.post(prompt=f"prompt {i}")).status_code == 200
        assert len(router["p0"].requests) == 3


@pytest.mark.usefixtures("long_ejections")
async def test_failures_between_good_answers_eject_nobody(start):
    async with start("p0", "d0", "d1") as router:
        for _ in range(5):
            router["d0"].script.append(answer(500, {}))
            await fail_once(router)
            while (await router.post()).headers["x-eldr-decode"] != "d0":
                pass
        assert await healthy(router) == [True, True]


@pytest.mark.usefixtures("long_ejections")
async def test_a_clients_fault_ejects_nobody(start):
    async with start("p0", "d0", "d1") as router:
        router.play(answer(422, CLIENT_ERROR), answer(400, CLIENT_ERROR), times=3)
        for _ in range(12):
            assert (await router.post()).status_code in (400, 422)
        assert await healthy(router) == [True, True]


@pytest.mark.usefixtures("long_ejections")
@pytest.mark.parametrize("fault", [reset, answer(200, [], "transfer-encoding: chunked\r\n")])
async def test_engines_that_look_well_and_fail_are_left_alone_too(start, fault):
    async with start("p0", "d0", "d1") as router:
        router["d0"].script.extend([fault] * 1000)
        for _ in range(40):
            assert (await router.post()).status_code == 200
        assert await healthy(router) == [False, True]
        assert len(router["d0"].requests) < 10, (
            "three that count, and some on connections that may have been stale"
        )


@pytest.mark.slow
async def test_a_silent_engine_is_asked_whether_it_lives(start, monkeypatch):
    from eldr_router.engines import probes

    monkeypatch.setattr(probes, "_PATIENCE", 1.0)
    async with start("p0", "d0", "d1", settings={"decode_idle_timeout_seconds": 0.5}) as router:
        router["d0"].script.extend([hang] * 100)
        router["d0"].health = hang
        for _ in range(4):
            assert (await router.post()).status_code == 200
        silent, _ = router.app.services.registry.endpoints("decode")
        await until(lambda: not silent.health.probed_well, "its silence to be noticed")
        assert await healthy(router) == [False, True]
        router["d0"].script.clear()
        router["d0"].health = None
        await until(
            lambda: all(e.health.probed_well for e in router.app.services.registry.endpoints("decode")),
            "a probe",
        )
        assert await healthy(router) == [True, True]


async def dripping(exchange: Exchange) -> None:
    """Stream for three times as long as silence may last."""
    await exchange.stream_head()
    for _ in range(12):
        await exchange.event(token_event("drip"))
        await asyncio.sleep(DEAF / 4)
    await exchange.stream_end()


@pytest.fixture
def soon_deaf(monkeypatch):
    """Silence of an engine that listens no more counts soon, and it is looked for often."""
    from eldr_router import app
    from eldr_router.engines import probes
    from eldr_router.net import pool

    monkeypatch.setattr(pool, "DEAF_SECONDS", DEAF)
    monkeypatch.setattr(app, "_SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(probes, "_PERIOD", 0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("soon_deaf")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", ["p", "d"])
async def test_an_engine_that_listens_no_more_and_is_silent_is_given_up(start, role, stream):
    """Its server shuts down, and waits for answers that never come: a connection that is never closed."""
    async with start("p0", "p1", "d0", "d1") as router:
        for name in (f"{role}0", f"{role}1"):
            router[name].script.append(hang)
        asking = asyncio.ensure_future(router.post(stream=stream))
        await until(lambda: router[f"{role}0"].requests or router[f"{role}1"].requests, "a request to hang")
        stuck, other = (f"{role}0", f"{role}1") if router[f"{role}0"].requests else (f"{role}1", f"{role}0")
        router[other].script.clear()
        router[stuck].stop_listening()
        assert (await asking).status_code == 200
        assert router.counter("retries", cause="timeout") == 1
        assert len(router[other].requests) == 1
        await until(router.idle, "nothing in flight")
        router.pulled_once()


@pytest.mark.slow
@pytest.mark.usefixtures("soon_deaf")
@pytest.mark.parametrize("answers", [False, True], ids=["answers nothing", "answers on old connections"])
async def test_a_stream_of_an_engine_that_listens_no_more_ends_with_an_error_once_it_is_silent(
    start, answers
):
    async with start("p0", "d0") as router:
        router["d0"].script.append(slow(asyncio.Event()))
        asking = asyncio.ensure_future(router.post(stream=True))
        await until(router.decoding, "a stream")
        if answers:
            # a connection that rests in the pool, on which probes could find the engine well for ever
            (endpoint,) = router.app.services.registry.endpoints("decode")
            pool = router.app.services.pool
            assert (await fetch(pool, endpoint.address, PATH_HEALTH, patience=DEADLINE)).status == 200
        router["d0"].stop_listening()
        text = (await asking).text
        assert "accepts no connections" in text
        assert router.counter("requests", outcome="broken_stream") == 1
        await until(router.idle, "nothing in flight")


@pytest.mark.slow
@pytest.mark.usefixtures("soon_deaf")
async def test_an_engine_that_finishes_its_streams_before_it_ends_is_let(start):
    async with start("p0", "d0") as router:
        router["d0"].script.append(dripping)
        asking = asyncio.ensure_future(router.post(stream=True))
        await until(router.decoding, "a stream")
        router["d0"].stop_listening()
        answer = await asking
        assert answer.text.count("drip") == 12
        assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.slow
@pytest.mark.usefixtures("soon_deaf")
async def test_silence_of_an_engine_that_listens_again_is_none(start):
    """Restarted, or its host's network was away for a while."""
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        asking = asyncio.ensure_future(router.post(stream=True))
        await until(router.decoding, "a stream")
        router["d0"].stop_listening()
        (endpoint,) = router.app.services.registry.endpoints("decode")
        await until(lambda: not endpoint.health.probed_well, "a probe that is refused")
        await router["d0"].start()
        router.app.services.probes.ask(endpoint)  # now: its own turn comes late on a machine that is busy
        await until(lambda: endpoint.health.probed_well, "a probe that is answered")
        connections = router.app.services.pool._all
        await until(
            lambda: any(one.state.value == "body" and one._quiet > 2 * DEAF for one in connections),
            "a long silence",
        )
        release.set()
        assert (await asking).text.endswith("data: [DONE]\n\n")


@pytest.mark.slow
async def test_probes_find_a_dead_engine_without_any_request(start, monkeypatch):
    from eldr_router.engines import probes

    monkeypatch.setattr(probes, "_PERIOD", 0.2)
    async with start("p0", "d0", "d1") as router:
        router["d1"].health = answer(503, {})
        await until(
            lambda: not router.app.services.registry.endpoints("decode")[1].health.probed_well, "a probe"
        )
        for _ in range(4):
            assert (await router.post()).headers["x-eldr-decode"] == "d0"


@pytest.mark.usefixtures("long_ejections")
@pytest.mark.parametrize("fault", [answer(500, {}), reset])
async def test_poison_ejects_nobody(start, fault):
    """Three requests that every engine fails on."""

    async def poisoned(exchange):
        await (fault if "poison" in exchange.seen.body["prompt"] else prefill)(exchange)

    async with start("p0", "p1", "d0") as router:
        router.play(poisoned, times=100, at=("p0", "p1"))
        for i in range(3):
            assert (await router.post(prompt=f"poison {i}")).status_code == 502
        registry = router.app.services.registry
        assert [registry.is_healthy(e) for e in registry.endpoints("prefill")] == [True, True]
        for i in range(8):
            assert (await router.post(prompt=f"good {i}")).status_code == 200
        assert router["p0"].requests[-1] is not router["p1"].requests[-1]


@pytest.mark.usefixtures("long_ejections")
async def test_polls_say_nothing_about_completions(start):
    async with start("p0", "d0", "d1") as router:
        router["d0"].script.extend([answer(500, {})] * 100)
        for _ in range(12):
            assert (await router.post()).status_code == 200
            for _ in range(3):
                assert (await router.client.get(f"{router.url}/v1/models")).status_code == 200
        assert await healthy(router) == [False, True]
        assert len(router["d0"].requests) == 3


async def test_an_engine_that_is_full_passes_the_request_to_a_free_one(start):
    full = answer(429, CLIENT_ERROR, "retry-after: 7\r\n")
    async with start("p0", "p1", "d0", "d1") as router:
        router.play(full, at=("p0", "d0"))
        for i in range(8):
            assert (await router.post(prompt=f"prompt {i}")).status_code == 200
        assert router.counter("retries", cause="rate_limited") == 2
        assert await healthy(router) == [True, True]
        router.play(full, times=2, at=("p0", "p1"))
        got = await router.post()
        assert (got.status_code, got.headers["retry-after"]) == (429, "7"), "all are full"

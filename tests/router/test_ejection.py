"""Which engines get no requests for a while, and when they do again."""

import asyncio
import time

import pytest

from eldr_router.plan import health
from tests.fakes.engines import (
    CLIENT_ERROR,
    answer,
    decode,
    draining,
    error_event,
)


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


@pytest.fixture
def long_ejections(monkeypatch):
    """Ejected engines stay so, however slow the machine is."""
    monkeypatch.setattr(health, "_FIRST_EJECTION", 600.0)
    monkeypatch.setattr(health, "_LONGEST_EJECTION", 600.0)


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

        for name in ("d0", "d1", "d2"):
            router[name].script.extend([pull] * 100)
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
        for name in ("d0", "d1"):
            router[name].script.extend([answer(422, CLIENT_ERROR), answer(400, CLIENT_ERROR)] * 3)
        for _ in range(12):
            assert (await router.post()).status_code in (400, 422)
        assert await healthy(router) == [True, True]

"""What cannot go through both legs: whole requests, and those for which there is no engine or no room."""

import asyncio

import pytest

from tests.fakes.engines import answer, slow
from tests.router.conftest import until


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"n": 2}, "n"),
    ],
)
async def test_what_cannot_be_split_goes_whole_to_one_decode_engine(start, fields, reason):
    async with start("p0", "d0", "d1") as router:
        assert (await router.post(**fields)).status_code == 200
        assert not router["p0"].requests
        (seen,) = router["d0"].requests + router["d1"].requests
        assert seen.body == {"model": "m", "prompt": "hello", **fields}
        assert router.counter("whole", reason=reason) == 1
        assert router.counter("placements", policy="JSQ", reason="whole") == 1


async def test_without_prefill_engines_decode_engines_do_it_all(start):
    async with start("d0") as router:
        assert (await router.post()).status_code == 200
        assert "kv_transfer_params" not in router["d0"].requests[0].body
        assert router.counter("whole", reason="no_prefill") == 1


async def test_without_decode_engines_503(start):
    async with start("p0") as router:
        got = await router.post(headers={"x-request-id": "mine"})
        assert got.status_code == 503
        assert got.headers["retry-after"]
        assert got.headers["x-request-id"] == "mine"
        assert got.json()["error"]["code"] == "no_decode"
        assert not router["p0"].requests


async def test_a_prefill_without_blocks_is_decoded_from_the_prompt(start):
    async with start("p0", "d0") as router:
        router["p0"].script.append(answer(200, {"choices": [], "kv_transfer_params": None}))
        assert (await router.post()).status_code == 200
        assert "kv_transfer_params" not in router["d0"].requests[0].body
        assert router.counter("whole", reason="no_kv") == 1


async def test_a_burst_does_not_overrun_the_limit(start):
    """Requests that are still in prefill hold their place, so that none comes back with blocks and finds no engine."""
    async with start("p0", "d0", "d1", max_in_flight=3) as router:
        release = asyncio.Event()
        router.play(slow(release), times=3)
        tasks = [asyncio.ensure_future(router.post(stream=True)) for _ in range(10)]
        await until(lambda: sum(task.done() for task in tasks) == 4, "the surplus to be refused")
        refused = [task.result() for task in tasks if task.done()]
        assert {(got.status_code, got.headers["retry-after"]) for got in refused} == {(429, "1")}
        await until(lambda: router.in_flight() == {"p0": 0, "d0": 3, "d1": 3}, "engines to be full")
        release.set()
        assert sorted([(await task).status_code for task in tasks]) == [200] * 6 + [429] * 4
        assert len(router["p0"].requests) == 6


@pytest.mark.parametrize(
    ("fields", "sequences"), [({"n": 3}, 3), ({"prompt": ["a", "b"], "n": 2}, 4), ({"prompt": [[1], [2]]}, 2)]
)
async def test_a_request_takes_the_room_of_all_its_sequences(start, fields, sequences):
    """What waits behind them at the engine would lose its KV."""
    async with start("p0", "d0", max_in_flight=5) as router:
        release = asyncio.Event()
        router["d0"].script.extend(slow(release) for _ in range(5))
        tasks = [asyncio.ensure_future(router.post(stream=True, **fields))]
        await until(lambda: router.in_flight() == {"p0": 0, "d0": sequences}, "the engine to run them all")
        tasks += [asyncio.ensure_future(router.post(stream=True)) for _ in range(5 - sequences)]
        await until(lambda: router.in_flight() == {"p0": 0, "d0": 5}, "the engine to be full")
        assert (await router.post()).status_code == 429
        release.set()
        assert {(await task).status_code for task in tasks} == {200}
        await until(lambda: router.in_flight() == {"p0": 0, "d0": 0}, "the room to be given back")


async def test_one_free_place_is_enough_for_more_sequences_than_an_engine_may_have(start):
    async with start("p0", "d0", "d1", max_in_flight=4) as router:
        release = asyncio.Event()
        router.play(slow(release), times=4)
        small = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: sum(router.in_flight().values()) == 1, "one engine to be busy")
        large = asyncio.ensure_future(router.post(stream=True, n=1000))
        await until(lambda: sorted(router.in_flight().values()) == [0, 1, 1000], "the other to be taken")
        fills = [asyncio.ensure_future(router.post(stream=True)) for _ in range(3)]
        await until(lambda: sorted(router.in_flight().values()) == [0, 4, 1000], "the first to be full")
        assert (await router.post(n=2)).status_code == 429
        release.set()
        assert {(await each).status_code for each in (small, large, *fills)} == {200}

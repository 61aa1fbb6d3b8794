"""Engines of two releases side by side: no KV between them, no request lost."""

import asyncio
import contextlib
from collections import Counter
from functools import partial

import pytest

from tests.fakes.engines import answer, draining, engines, reset, slow
from tests.router.conftest import serving, until
from tests.router.test_full_engines import prefill_after


@pytest.fixture
def mixed(tmp_path):
    """Start a router over engines whose keys stand behind their names: ``mixed("p0:old", "d0:new")``."""

    @contextlib.asynccontextmanager
    async def start(*described, **fields):
        keys = dict(each.split(":") for each in described)
        async with engines(*keys) as made:
            for engine in made:
                engine.kv = keys[engine.name]
            async with serving(made, tmp_path, **fields) as router:
                yield router
                assert pairs(router).keys() <= {("old", "old"), ("new", "new")}
                router.pulled_once()

    return start


def pulls(engine):
    found = (seen.body.get("kv_transfer_params") for seen in engine.requests)
    return [params for params in found if params]


def pairs(router):
    """Count the keys of who prefilled and who pulled."""
    return Counter(
        (router[params["remote_engine_id"]].kv, engine.kv)
        for engine in router.engines.values()
        if engine.role == "decode"
        for params in pulls(engine)
    )


def whole(router, name):
    return len(router[name].requests) - len(pulls(router[name]))


async def test_no_kv_between_unlike_engines_and_all_of_them_work(mixed):
    async with mixed("p0:old", "p1:new", "d0:old", "d1:new", "d2:old") as router:
        got = await asyncio.gather(*(router.post() for _ in range(40)))
        assert {each.status_code for each in got} == {200}
        assert sum(pairs(router).values()) == 40
        assert set(pairs(router)) == {("old", "old"), ("new", "new")}
        assert router.counter("whole") == 0


async def test_decode_engines_without_a_prefill_engine_of_their_kind_do_it_all(mixed):
    async with mixed("p0:old", "d0:old", "d1:new") as router:
        got = await asyncio.gather(*(router.post() for _ in range(40)))
        assert {each.status_code for each in got} == {200}
        assert pairs(router).keys() == {("old", "old")}
        assert whole(router, "d1") > 0
        assert whole(router, "d0") == 0
        assert router.counter("whole", reason="kv_key") == whole(router, "d1")


async def test_prefill_engines_without_a_decode_engine_of_their_kind_get_nothing(mixed):
    async with mixed("p0:old", "p1:new", "d0:old") as router:
        for _ in range(6):
            assert (await router.post()).status_code == 200
        assert not router["p1"].requests
        assert pairs(router) == {("old", "old"): 6}


async def test_one_whose_kind_goes_before_it_decodes_is_done_whole(mixed):
    async with mixed("p0:old", "d0:old") as router:
        held, answered = asyncio.Event(), router["p0"]

        answered.script.append(partial(prefill_after, held))
        asked = asyncio.create_task(router.post())
        await until(lambda: answered.requests, "the prefill")
        router["d0"].kv = "new"
        await router.configure()
        held.set()
        assert (await asked).status_code == 200
        assert router.counter("whole", reason="kv_key") == 1
        await until(lambda: not router.app.services._tasks, "blocks to be freed, or not")
        assert not pulls(router["d0"]), "it cannot pull them, not to free them either"


async def test_a_rollout_that_begins_between_the_legs_moves_no_kv_to_what_is_new(mixed):
    async with mixed("p0:old", "d0:old", "d1:old") as router:
        held, answered = asyncio.Event(), router["p0"]

        answered.script.extend([partial(prefill_after, held)] * 6)
        asked = [asyncio.create_task(router.post()) for _ in range(6)]
        await until(lambda: len(answered.requests) == 6, "the prefills")
        router["d1"].kv = "new"
        await router.configure()
        held.set()
        assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
        assert pairs(router) == {("old", "old"): 6}


async def test_a_full_kind_sends_what_it_prefilled_whole_to_another(mixed):
    async with mixed("p0:old", "d0:old", "d1:new", max_in_flight=1) as router:
        release = asyncio.Event()
        router.play(slow(release))
        asked = [asyncio.create_task(router.post(stream=True)) for _ in range(2)]
        await until(lambda: all(router[name].requests for name in ("d0", "d1")), "one on each")
        assert (await router.post()).status_code == 429
        release.set()
        assert {each.status_code for each in await asyncio.gather(*asked)} == {200}


async def test_where_all_kinds_are_full_a_result_waits_for_its_own(mixed):
    async with mixed("p0:old", "p1:new", "d0:old", "d1:new") as router:
        for name in ("d0", "d1"):
            router[name].limit = 3
        router["d1"].in_flight = 3
        await router.poll()
        router["d0"].in_flight = 3
        asking = asyncio.create_task(router.post())
        await until(lambda: router.counter("retries", leg="decode", cause="full"), "an engine to decline")
        await until(lambda: router.app.services.waiting, "the result to wait")
        for name in ("d0", "d1"):
            router[name].in_flight = 0
        await router.poll()
        assert (await asking).status_code == 200
        assert pairs(router) == {("old", "old"): 2}, "declined once, then pulled"
        assert [len(router[name].requests) for name in ("p0", "p1", "d1")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "behaviour"),
    [
        ("d1", answer(500, {"error": "x"})),
        ("d1", answer(503, {"error": "x"})),
        ("d1", answer(429, {"error": "x"})),
        ("d1", draining),
        ("d1", reset),
        ("p1", answer(500, {"error": "x"})),
        ("p1", answer(429, {"error": "x"})),
        ("p1", reset),
    ],
)
async def test_the_only_engine_of_a_kind_that_fails_costs_no_request(mixed, name, behaviour):
    async with mixed("p0:old", "p1:new", "d0:old", "d1:new") as router:
        router[name].script.extend([behaviour] * 100)
        got = [
            *await asyncio.gather(*(router.post() for _ in range(8))),
            *[await router.post() for _ in range(8)],
        ]
        assert {each.status_code for each in got} == {200}
        assert router[name].requests


async def test_nor_does_one_that_does_whole_requests(mixed):
    async with mixed("p0:old", "d0:old", "d1:new") as router:
        router["d1"].script.extend([answer(500, {"error": "x"})] * 100)
        got = await asyncio.gather(*(router.post() for _ in range(20)))
        assert {each.status_code for each in got} == {200}
        assert router["d1"].requests


@pytest.fixture
def prefilling(mixed):
    """Start with a request that the old prefill engine holds; it goes on when the event is set."""

    @contextlib.asynccontextmanager
    async def start(*described):
        async with mixed(*described) as router:
            go_on, source = asyncio.Event(), router["p0"]

            source.script.append(partial(prefill_after, go_on))
            asked = []
            while not source.requests:  # which kind a request gets may change
                asked.append(asyncio.create_task(router.post()))
                await until(lambda: source.requests or asked[-1].done(), "the prefill")
            yield router, go_on
            assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
            assert not any(params["remote_engine_id"] == "p0" for params in pulls(router["d1"]))

    return start


async def test_a_result_whose_whole_kind_goes_is_pulled_by_nobody(prefilling):
    async with prefilling("p0:old", "p1:new", "d0:old", "d1:new") as (router, go_on):
        every = dict(router.engines)
        del router.engines["p0"], router.engines["d0"]
        await router.configure()
        router.engines.update(every)
        go_on.set()


async def test_a_result_has_the_key_that_its_engine_had_when_it_was_asked(prefilling):
    async with prefilling("p0:old", "p1:new", "d0:old", "d1:new") as (router, go_on):
        router["p0"].kv = "new"
        await router.configure()
        router["p0"].kv = "old"
        go_on.set()


async def test_a_kind_without_room_is_not_prefilled_for(mixed):
    async with mixed("p0:old", "p1:new", "d0:old", "d1:new", max_in_flight=1) as router:
        release = asyncio.Event()
        router.play(slow(release))
        first = asyncio.create_task(router.post(stream=True))
        await until(router.decoding, "a stream")
        second = asyncio.create_task(router.post(stream=True))
        await until(lambda: router["d0"].requests and router["d1"].requests, "one on each")
        assert router.counter("whole") == 0
        release.set()
        assert {each.status_code for each in await asyncio.gather(first, second)} == {200}

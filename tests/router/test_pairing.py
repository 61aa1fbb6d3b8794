"""Engines of two releases side by side: no KV between them, no request lost."""

import asyncio
import contextlib
from collections import Counter

import pytest

from tests.fakes.engines import engines, prefill, slow
from tests.router.conftest import serving, until


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

        async def late(exchange):
            await held.wait()
            await prefill(exchange)

        answered.script.append(late)
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

        async def late(exchange):
            await held.wait()
            await prefill(exchange)

        answered.script.extend([late] * 6)
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
        for name in ("d0", "d1"):
            router[name].script.append(slow(release))
        asked = [asyncio.create_task(router.post(stream=True)) for _ in range(2)]
        await until(lambda: all(router[name].requests for name in ("d0", "d1")), "one on each")
        assert (await router.post()).status_code == 429
        release.set()
        assert {each.status_code for each in await asyncio.gather(*asked)} == {200}

"""A router that lacks descriptors says so, and blames no engine."""

from __future__ import annotations

import asyncio
import collections
import errno
import os

import httpx
import pytest

from eldr import contract
from eldr_router import app as app_module
from tests.router.conftest import Router, until
from tests.support.processes import engine
from tests.support.router import AUTH, router


class Exhausted:
    """An event loop that can open no connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, code: int) -> None:
        self._loop, self._code, self.asked = loop, code, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_connection(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise OSError(self._code, os.strerror(self._code))


def verdicts(router: Router) -> list[tuple[bool, float]]:
    registry = router.app.services.registry
    engines = registry.endpoints("prefill") + registry.endpoints("decode")
    return [(engine.health.probed_well, engine.health.good_from) for engine in engines]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_no_engine_is_blamed(start, code):
    async with start("p0", "p1", "d0", "d1") as router:
        pool, before = router.app.services.pool, verdicts(router)
        whole, pool.loop = pool.loop, Exhausted(pool.loop, code)
        for path in ("/v1/completions", "/v1/chat/completions"):
            answer = await router.post(path, messages=[{"role": "user", "content": "x"}])
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert os.strerror(code) in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "2"
        answer = await router.client.get(f"{router.url}/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        asked = pool.loop.asked
        for engine in router.app.services.registry.endpoints("decode"):
            router.app.services.probes.ask(engine)
        await until(lambda: pool.loop.asked >= asked + 2, "the probes")
        await until(lambda: not router.app.services.probes._running, "their end")
        assert verdicts(router) == before
        pool.loop = whole
        assert (await router.post()).status_code == 200


async def test_a_prefill_result_is_not_lost_sight_of(start):
    """The prefill is over when descriptors run out: nothing stays in flight."""
    async with start("p0", "d0") as router:
        assert (await router.post()).status_code == 200
        pool = router.app.services.pool
        whole = pool.loop
        idle = pool._idle.pop(router.app.services.registry.endpoints("decode")[0].address)
        pool.loop = Exhausted(whole, errno.EMFILE)
        assert (await router.post()).status_code == 503
        await until(router.idle, "all leases to return")
        pool.loop = whole
        for connection in idle:
            connection.close()


@pytest.mark.process
async def test_more_clients_than_descriptors(tmp_path):
    """All at once: who is admitted is served, the router's own port answers meanwhile, and no engine is blamed."""
    few = 256
    with (
        engine("prefill", "--speed", "0.05") as prefill,
        engine("decode", "--speed", "0.05") as decode,
        router(
            tmp_path, {"p": prefill.url, "d": decode.url}, under=("prlimit", f"--nofile={few}:{few}")
        ) as limited,
    ):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:

            async def ask(number: int) -> int | str:
                body = {"model": "m", "prompt": f"prompt {number}", "max_tokens": 32}
                try:
                    return (await client.post(f"{limited.url}/v1/completions", json=body)).status_code
                except httpx.TransportError as error:
                    return type(error).__name__

            asked = [asyncio.create_task(ask(number)) for number in range(2 * few)]
            await until(lambda: any(one.done() for one in asked), "the first answer")
            state = await client.get(limited.admin + contract.PATH_STATE, headers=AUTH)
            assert state.status_code == 200
            statuses = collections.Counter(await asyncio.gather(*asked))
            assert await ask(0) == 200
        assert set(statuses) <= {200, 503, "ReadError"}, statuses
        assert statuses[200] >= app_module._connections(few), "who is admitted is served"
        assert statuses[503], statuses
        assert limited.counter("retries") == 0
        assert all(one["healthy"] for role in ("prefill", "decode") for one in limited.state()[role])

"""A router that lacks descriptors says so, and blames no engine."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from tests.router.conftest import Router, until


class Exhausted:
    """An event loop that can open no connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, code: int) -> None:
        self._loop, self._code, self.asked = loop, code, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_connection(self, *_: object) -> None:
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
            router.app.services.probes.suspect(engine)
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

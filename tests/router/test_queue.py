"""Requests that wait for room before their prefill."""

from __future__ import annotations

import asyncio
import math
from typing import Self

import httpx
import pytest

from eldr_router import app
from tests.fakes.engines import engines, slow
from tests.router.conftest import AUTH, Router, until
from tests.router.test_peers import peers

ONE = {"max_waiting": 8, "max_wait_seconds": 60.0}


def waiting(router: Router) -> int:
    return len(router.app.services.queue._entries)


def held(router: Router) -> int:
    return router.app.clients.budget.held


async def ask(router: Router, prompt: str = "x", **fields) -> httpx.Response:
    return await router.post(prompt=prompt, max_tokens=3, **fields)


async def in_line(router: Router, count: int, **fields) -> list[asyncio.Task[httpx.Response]]:
    """Let so many requests wait, one after the other."""
    tasks = []
    for i in range(count):
        tasks.append(asyncio.ensure_future(ask(router, f"waits {i}", **fields)))
        await until(lambda: waiting(router) == len(tasks), "it to wait")
    return tasks


@pytest.fixture
def no_ticks(monkeypatch):
    """Nobody looks for room now and then: whatever brings some has to say so."""
    monkeypatch.setattr(app, "_TICK_SECONDS", 600.0)


class Busy:
    """Holds places of engines until it is told to let them go."""

    def __init__(self, router: Router, *names: str) -> None:
        self.router, self.names = router, names
        self.releases: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[httpx.Response]] = []

    async def __aenter__(self) -> Self:
        for name in self.names:
            release = asyncio.Event()
            self.router[name].script.append(slow(release))
            self.releases.append(release)
        for at in range(len(self.names)):
            self.tasks.append(asyncio.ensure_future(self.router.post(stream=True)))
            await until(lambda at=at: sum(self.router.counts().values()) > at, "a place")
        return self

    def free(self) -> None:
        self.releases.pop(0).set()

    async def __aexit__(self, *_) -> None:
        for release in self.releases:
            release.set()
        assert [answer.status_code for answer in await asyncio.gather(*self.tasks)] == [200] * len(self.tasks)


async def test_the_first_come_is_the_first_served_before_its_prefill(start, no_ticks):
    async with start("p0", "d0", settings=ONE, max_in_flight=1) as router, Busy(router, "d0") as busy:
        tasks = await in_line(router, 3)
        assert len(router["p0"].requests) == 1, "nobody who waits has a prefill"
        page = await router.client.get(f"{router.admin}/metrics", headers=AUTH)
        assert "eldr_router_waiting 3.0" in page.text
        busy.free()
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 3
        prompts = [seen.body["prompt"] for seen in router["d0"].requests]
        assert prompts == ["hello", "waits 0", "waits 1", "waits 2"]
        assert router.counter("rejected") == 0
        page = await router.client.get(f"{router.admin}/metrics", headers=AUTH)
        assert "eldr_router_waiting 0.0" in page.text
        assert "eldr_router_wait_seconds_count 3.0" in page.text


async def test_a_bound_and_a_deadline(start):
    settings = {"max_waiting": 2, "max_wait_seconds": 0.5}
    async with start("p0", "d0", settings=settings, max_in_flight=1) as router, Busy(router, "d0"):
        tasks = await in_line(router, 2)
        beyond = await ask(router)
        assert (beyond.status_code, beyond.headers["retry-after"]) == (429, "1")
        assert router.counter("rejected", reason="queue_full") == 1
        for answer in await asyncio.gather(*tasks):
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json()["error"]["code"] == "overloaded"
        assert router.counter("rejected", reason="deadline") == 2
        assert router.counter("requests", outcome="overloaded") == 3
        assert len(router["p0"].requests) == 1
        assert waiting(router) == 0


async def test_who_may_wait_changes_without_a_restart(start):
    async with start("p0", "d0", max_in_flight=1) as router, Busy(router, "d0") as busy:
        assert (await ask(router)).status_code == 429, "by default nobody waits"
        await router.configure(max_in_flight=1, max_waiting=1, max_wait_seconds=60.0)
        (waits,) = await in_line(router, 1)
        assert (await ask(router)).status_code == 429, "one may"
        await router.configure(max_in_flight=1, max_waiting=2, max_wait_seconds=0.2)
        late = await ask(router)
        assert late.status_code == 429
        assert router.counter("rejected", reason="deadline") == 1, "it waited, by the new time"
        await router.configure(max_in_flight=1, max_waiting=0)
        assert waiting(router) == 1, "who waits goes on waiting"
        assert (await ask(router)).status_code == 429
        busy.free()
        assert (await waits).status_code == 200


async def test_the_document_counts_before_the_options(start):
    settings = {"max_waiting": 8, "max_wait_seconds": 60.0}
    async with (
        start("p0", "d0", settings=settings, max_in_flight=1, max_waiting=0) as router,
        Busy(router, "d0"),
    ):
        assert (await ask(router)).status_code == 429


async def test_a_client_that_leaves_waits_no_longer(start):
    async with start("p0", "d0", settings=ONE, max_in_flight=1) as router, Busy(router, "d0") as busy:
        first, second = await in_line(router, 2)
        first.cancel()
        await until(lambda: waiting(router) == 1, "it to leave")
        busy.free()
        assert (await second).status_code == 200
        assert [seen.body["prompt"] for seen in router["d0"].requests] == ["hello", "waits 1"]
        assert router.counter("requests", outcome="disconnected") == 1


async def test_bodies_that_wait_count(start):
    settings = {**ONE, "max_body": 1 << 20, "max_bodies": 1 << 20}
    async with start("p0", "d0", settings=settings, max_in_flight=1) as router, Busy(router, "d0") as busy:
        task = asyncio.ensure_future(ask(router, "y" * 600_000))
        await until(lambda: waiting(router), "it to wait")
        assert held(router) > 600_000
        full = await ask(router, "z" * 600_000)
        assert (full.status_code, full.json()["error"]["code"]) == (503, "uploads_full")
        busy.free()
        assert (await task).status_code == 200
        await until(lambda: held(router) == 0, "all bodies to be dropped")


async def test_a_router_that_ends_answers_those_who_wait(start):
    async with start("p0", "d0", settings=ONE, max_in_flight=1) as router, Busy(router, "d0") as busy:
        tasks = await in_line(router, 2)
        draining = asyncio.ensure_future(router.app.drain())
        for answer in await asyncio.gather(*tasks):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "draining"
        assert router.counter("rejected", reason="draining") == 2
        busy.free()
        await draining


@pytest.mark.parametrize("what", ["engine", "limit"])
async def test_a_change_of_the_pool_wakes_who_waits(start, no_ticks, what):
    async with start("p0", "d0", settings=ONE, max_in_flight=1) as router, Busy(router, "d0"):
        (task,) = await in_line(router, 1)
        async with engines("d1") as more:
            if what == "engine":
                router.engines["d1"] = more[0]
            await router.configure(max_in_flight=1 if what == "engine" else 2)
            assert (await task).status_code == 200


async def test_an_engine_that_is_well_again_wakes_who_waits(start):
    async with start("p0", "d0", "d1", settings=ONE, max_in_flight=1) as router:
        (sick,) = (e for e in router.app.services.registry.endpoints("decode") if e.name == "d1")
        sick.health.good_from = math.inf
        async with Busy(router, "d0"):
            (task,) = await in_line(router, 1)
            sick.health.good_from = 0.0
            assert (await task).status_code == 200


@pytest.mark.usefixtures("polled")
async def test_room_that_an_engine_reports_wakes_who_waits(start, no_ticks):
    async with start("p0", "d0", settings=ONE, max_in_flight=4) as router:
        router["d0"].limit = router["d0"].in_flight = 4
        (engine,) = router.app.services.registry.endpoints("decode")
        await until(lambda: engine.load, "it to report")
        (task,) = await in_line(router, 1)
        router["d0"].in_flight = 3
        assert (await task).status_code == 200
        router["d0"].in_flight = 0


@pytest.mark.usefixtures("polled")
async def test_everybody_who_waits_at_two_routers_is_served(tmp_path):
    fields = {"max_in_flight": 4, "max_waiting": 100}
    async with engines("p0", "d0") as made, peers(made, tmp_path, 2, limit=4, **fields) as routers:
        answers = await asyncio.gather(*(ask(routers[i % 2], f"{i}") for i in range(80)))
        assert [answer.status_code for answer in answers] == [200] * 80
        for router in routers:
            await until(router.idle, "every place to be free")

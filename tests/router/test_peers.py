"""Routers that split a limit, over real sockets: no engine ever runs more than it may, and nobody is refused needlessly."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from eldr.clients import UNBOUNDED
from eldr_kube.ports import free_ports
from eldr_router.app import App
from eldr_router.plan import members as rules
from eldr_router.settings import Settings
from tests.fakes.engines import Exchange, FakeEngine, engines, prefill, slow, token_event
from tests.router.conftest import DEADLINE, Router, signature, until, write_workers
from tests.support.router import AUTH, TOKEN


@contextlib.asynccontextmanager
async def peers(made: list[FakeEngine], folder, count: int, **fields) -> AsyncIterator[list[Router]]:
    """Start routers that list each other."""
    ports = free_ports(count)
    workers = folder / "workers.yaml"
    write_workers(workers, made, **fields)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED))
        routers = [
            await stack.enter_async_context(starting(made, workers, client, port, ports)) for port in ports
        ]
        await until(lambda: not any(awaited(router) for router in routers), "everybody to have its share")
        await until(lambda: all(len(view(router).members) == count for router in routers), "all members")
        await until(lambda: not any(awaited(router) for router in routers), "everybody to have its share")
        yield routers


@contextlib.asynccontextmanager
async def starting(
    made, workers, client, port: int, ports: list[int], *, is_ready: bool = True
) -> AsyncIterator[Router]:
    others = tuple(f"http://127.0.0.1:{other}" for other in ports if other != port)
    options = {"port": 0, "admin_port": port, "admin_token": TOKEN, "peers": others, "lame_duck_seconds": 0.0}
    app = App(Settings(workers=workers, **options))
    await app.start()
    try:
        if is_ready:
            await until(app.is_ready, "the router to be ready")
        yield Router(app, {engine.name: engine for engine in made}, workers, client)
    finally:
        await app.stop()


def shares(router: Router):
    return router.app.services.registry.shares


def view(router: Router):
    return shares(router).view


def awaited(router: Router) -> list[str]:
    return shares(router).awaited


class Load:
    """Counts what runs at each engine at the same time; where ``engines`` is given, streams end once so many use the limit."""

    def __init__(self, limit: int, seconds: float, engines: int = 0) -> None:
        self.limit = limit
        self.seconds = seconds
        self.engines = engines
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def decode(self, exchange: Exchange) -> None:
        name = exchange.engine.name
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        try:
            await exchange.stream_head()
            await exchange.event(token_event(" one"))
            await asyncio.sleep(self.seconds)
            while not self.is_used():
                await asyncio.sleep(0.01)
            await exchange.stream_end()
        finally:
            self.running[name] -= 1

    def is_used(self) -> bool:
        """Whether the limit has been used at the engines, but for one place."""
        return sum(most >= self.limit - 1 for most in self.most.values()) >= self.engines

    async def prefill(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.seconds)
        await prefill(exchange)


class Endless(list):
    """A script that never ends."""

    def __init__(self, behaviour) -> None:
        super().__init__([behaviour])

    def popleft(self):
        return self[0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
async def test_no_engine_runs_more_than_the_limit(tmp_path, count):
    async with engines("p0", "p1", "d0", "d1", "d2") as made:
        load = Load(limit=4, seconds=0.05, engines=3)
        for engine in made:
            engine.script = Endless(load.prefill if engine.role == "prefill" else load.decode)
        async with peers(made, tmp_path, count, max_in_flight=load.limit) as routers:
            outcomes: Counter[int] = Counter()

            async def ask(client: int) -> None:
                for turn in itertools.count():
                    if turn >= 8 and outcomes[200] >= 60:
                        break
                    router = routers[(client * turn + client) % count if client % 2 else 0]
                    answer = await router.post(stream=True)
                    outcomes[answer.status_code] += 1
                    await asyncio.sleep(0.01)

            # no stream ends before: the limit is used, not only kept
            await asyncio.wait_for(asyncio.gather(*(ask(client) for client in range(40))), 200)
            assert set(outcomes) <= {200, 429}
            assert max(load.most.values()) <= load.limit, load.most
            await until(lambda: all(router.idle() for router in routers), "all leases to return")


@pytest.mark.slow
async def test_admitted_requests_are_placed_though_all_prefills_end_together(tmp_path):
    """What waits for its prefill at both routers never meets at one engine beyond the limit."""
    async with engines("p0", "d0") as made:
        held, load = asyncio.Event(), Load(limit=2, seconds=0.2)

        async def hold(exchange: Exchange) -> None:
            await held.wait()
            await prefill(exchange)

        made[0].script, made[1].script = Endless(hold), Endless(load.decode)
        async with peers(made, tmp_path, 2, max_in_flight=2) as routers:
            asking = [asyncio.ensure_future(routers[i % 2].post(stream=True)) for i in range(8)]
            await until(lambda: len(made[0].requests) == 2, "two prefills")
            await asyncio.sleep(0.2)
            held.set()
            outcomes = Counter(answer.status_code for answer in await asyncio.gather(*asking))
            assert outcomes == {200: 2, 429: 6}
            assert load.most["d0"] == 2


@pytest.mark.slow
async def test_one_busy_router_gets_the_room_of_the_others(tmp_path):
    async with engines("p0", "d0", "d1") as made, peers(made, tmp_path, 4, max_in_flight=16) as routers:
        release = asyncio.Event()
        for engine in made[1:]:
            engine.script = Endless(slow(release))

        async def served(router: Router) -> int:
            """Ask as a client does who is told to come back."""
            while (status := (await router.post(stream=True)).status_code) == 429:
                await asyncio.sleep(0.05)
            return status

        asking = []
        for _ in range(24):  # a quarter of 2 x 16 is 8
            asking.append(asyncio.ensure_future(served(routers[0])))
            await asyncio.sleep(0.05)
        registry = routers[0].app.services.registry
        await until(lambda: sum(registry.counts().values()) == 24, "all of them to run")
        asking.append(asyncio.ensure_future(served(routers[1])))
        await until(routers[1].decoding, "a request at another router: it has kept a place")
        release.set()
        assert set(await asyncio.gather(*asking)) == {200}


@pytest.mark.slow
async def test_counts_are_shared_and_requests_avoid_each_other(tmp_path):
    async with engines("p0", "d0", "d1") as made, peers(made, tmp_path, 2) as (first, second):
        release = asyncio.Event()
        for engine in made[1:]:
            engine.script.append(slow(release))
        busy = asyncio.ensure_future(first.post(stream=True))
        await until(first.decoding, "a stream at the first router")
        name = first.decoding()
        registry = second.app.services.registry
        decode = registry.endpoints("decode")
        await until(lambda: sum(registry.totals(decode)) == 1, "the second one to hear of it")
        assert registry.counts() == {"d0": 0, "d1": 0}
        for engine in made[1:]:
            if engine.name != name:
                engine.script.clear()
        for _ in range(4):
            assert (await second.post()).headers["x-eldr-decode"] != name
        release.set()
        await busy
        await until(lambda: sum(registry.totals(decode)) == 0, "the end of it to be heard of")


@pytest.mark.slow
async def test_a_router_that_dies_leaves_its_share_and_one_that_hangs_keeps_it(tmp_path, caplog, monkeypatch):
    from eldr_router.state import peers as module

    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    async with engines("p0", "d0") as made, peers(made, tmp_path, 2, max_in_flight=8) as (first, second):
        assert shares(first).bound("d0") == 4
        hung = asyncio.Event()
        answer = second.app.admins.handler

        async def late(request, client):
            await hung.wait()
            answer(request, client)

        def hang(request, client):
            client.run(late(request, client))

        second.app.admins.handler = hang
        caplog.clear()
        state = await first.state()
        assert state["share"]["members"] == sorted([first.app.services.router, second.app.services.router])
        await until(lambda: "reserved" in str(problem(first)), "the silence to be told")
        await asyncio.sleep(0.5)
        assert shares(first).bound("d0") == 4, "it may be alive"
        state = await first.state()
        assert state["peers"][0]["router"] == second.app.services.router
        assert re.search("does not answer|was silent", state["peers"][0]["problem"])
        assert state["decode"][0]["bound"] == 4
        text = first.app.services.metrics.exposition().decode()
        assert "eldr_router_unreachable_peers 1.0" in text
        assert "eldr_router_members 2.0" in text
        assert 'eldr_router_bound{endpoint="d0"} 4.0' in text
        assert "eldr_router_peer_age_seconds{" in text
        # of the second one: on a starved machine it may miss an answer of the first one itself
        address = second.admin.removeprefix("http://")
        told = [r for r in caplog.records if f"router at {address}:" in r.getMessage()]
        assert [r.levelno for r in told] == [logging.WARNING], "once, not for every question"
        second.app.admins.handler = answer
        hung.set()
        await until(lambda: problem(first) is None, "it to answer again")
        await second.app.stop()
        await until(lambda: shares(first).bound("d0") == 8, "its share to be free")
        answer = await first.client.get(f"{first.admin}/eldr/v1/state", headers=AUTH)
        assert answer.json()["peers"][0]["problem"] == "refuses connections"


def problem(router: Router) -> str | None:
    return next(iter(shares(router).peers.values())).problem


@pytest.mark.slow
async def test_a_router_that_another_one_does_not_list_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "_UNLISTED_SECONDS", 0.5)
    workers, ports = tmp_path / "w", free_ports(2)
    async with (
        engines("p0", "d0") as made,
        httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED) as client,
    ):
        write_workers(workers, made, max_in_flight=4)
        async with (
            starting(made, workers, client, ports[0], []) as first,
            starting(made, workers, client, ports[1], ports, is_ready=False) as second,
        ):
            await until(lambda: len(view(second).members) == 2, "the second one to hear the first")
            assert (await first.post()).status_code == 200
            answer = await second.post()
            assert answer.status_code == 429
            assert f"127.0.0.1:{ports[0]}" in answer.json()["error"]["message"]
            assert not second.app.is_ready()
            await until(lambda: "--peer" in str(problem(second)), "the reason to be told")


@pytest.mark.slow
async def test_a_router_restarts_at_its_address(tmp_path):
    async with engines("p0", "d0") as made:
        workers, ports = tmp_path / "w", free_ports(2)
        write_workers(workers, made, max_in_flight=4)
        async with (
            httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED) as client,
            starting(made, workers, client, ports[0], ports) as first,
        ):
            for _ in range(3):
                async with starting(made, workers, client, ports[1], ports) as second:
                    both = sorted([first.app.services.router, second.app.services.router])
                    await until(lambda want=both: list(view(first).members) == want, "the new id")
                    await until(lambda r=second: shares(r).bound("d0") == 2, "its share")
                    await until(lambda: shares(first).bound("d0") == 2, "the other share")
            await until(lambda: shares(first).bound("d0") == 4, "everything, alone")


KINDS = {"a": signature(500, 500, 0, 0, 500, 500, 0, 0), "b": signature(0, 0, 500, 500, 0, 0, 500, 500)}


@pytest.mark.slow
async def test_routers_place_by_each_others_experts(tmp_path):
    async with (
        engines("p0", "d0", "d1") as made,
        peers(made, tmp_path, 2, policy="MarginalUnion", max_in_flight=64) as (one, two),
        contextlib.AsyncExitStack() as streams,
    ):
        release = asyncio.Event()

        async def place(router, kind):
            for name in ("d0", "d1"):
                router[name].script.clear()
                router[name].script.append(slow(release))
            router["p0"].eldr = KINDS[kind]
            response = await streams.enter_async_context(router.stream())
            return response.headers["x-eldr-decode"]

        def told(router, n):
            unions = router.app.services.placer.locality.unions
            return sum(sequences for table in unions._others.values() for sequences, _ in table.values()) == n

        first = {kind: await place(one, kind) for kind in "ab"}
        assert first["a"] != first["b"]
        # the other router knows nothing until it has a signature of its own
        first_two = await place(two, "a")
        await until(lambda: told(two, 2), "the second router to be told")
        assert [await place(two, kind) for kind in "baab"] == [first[kind] for kind in "baab"], first_two
        await until(lambda: told(one, 5), "the first router to be told")
        assert [await place(one, kind) for kind in "ab"] == [first[kind] for kind in "ab"]
        state = await two.state()
        assert state["locality"]["tables"] == 1
        release.set()


@pytest.mark.slow
async def test_a_router_takes_over_what_another_one_learned(tmp_path):
    async with (
        engines("p0", "d0", "d1") as made,
        peers(made, tmp_path, 2, policy="MarginalUnion", max_in_flight=64) as (one, two),
    ):

        async def place(router, kind):
            router["p0"].eldr = KINDS[kind]
            return (await router.post()).headers["x-eldr-decode"]

        for kind in "abba" * 10:
            await place(one, kind)
        wanted = {kind: await place(one, kind) for kind in "ab"}
        assert set(wanted.values()) == {"d0", "d1"}
        await place(two, "a")  # it knows nothing until it has a signature of its own
        profiles = two.app.services.placer.locality.profiles
        await until(lambda: sum(profiles._heard.values()) >= 32, "the second router to be told")
        # nothing is in flight: only what was learned tells engines apart
        assert {kind: await place(two, kind) for kind in "abab"} == wanted


@pytest.mark.slow
async def test_a_router_that_lists_itself_counts_its_requests_once(tmp_path):
    port, closed = free_ports(2)
    async with (
        engines("p0", "d0", "d1") as made,
        httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED) as client,
    ):
        workers = tmp_path / "workers.yaml"
        write_workers(workers, made, policy="MarginalUnion")
        async with starting(made, workers, client, port, [port, closed]) as router:
            shares(router).set_addresses([("127.0.0.1", port)])
            router["p0"].eldr = signature(500, 500, 0, 0, 500, 500, 0, 0)
            release = asyncio.Event()
            for name in ("d0", "d1"):
                router[name].script.append(slow(release))
            async with router.stream():
                heard = lambda: shares(router).peers[("127.0.0.1", port)].heard  # noqa: E731
                await until(heard, "it to hear itself")
                since = heard()
                await until(lambda: heard() > since + 0.6, "two turns of tables")
                assert (await router.state())["locality"]["tables"] == 0
                release.set()

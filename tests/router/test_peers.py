"""Several routers before the same engines, over real sockets: engines keep the limit, and no router waits for another one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest

from eldr.clients import UNBOUNDED
from eldr_kube.ports import free_port, free_ports
from eldr_router.app import App
from eldr_router.settings import Settings
from tests.fakes.engines import Exchange, FakeEngine, answer, engines, prefill, slow, token_event
from tests.router.conftest import DEADLINE, Router, until, write_workers
from tests.router.test_marginal import KINDS
from tests.support.router import TOKEN

pytestmark = pytest.mark.usefixtures("polled")


@contextlib.asynccontextmanager
async def peers(
    made: list[FakeEngine], folder, count: int, *, limit: int | None = None, **fields
) -> AsyncIterator[list[Router]]:
    """Start routers that list each other; engines report that they run so many sequences, or report nothing."""
    ports = free_ports(count)
    workers = folder / "workers.yaml"
    for engine in made:
        engine.limit = limit if engine.role == "decode" else None
    write_workers(workers, made, **fields)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED))
        routers = [
            await stack.enter_async_context(starting(made, workers, client, port, ports)) for port in ports
        ]
        for router in routers:
            await until(lambda r=router: not limit or reports(r), "all engines to report")
        yield routers


def reports(router: Router) -> bool:
    return all(e.load is not None for e in router.app.services.registry.endpoints("decode"))


@contextlib.asynccontextmanager
async def starting(made, workers, client, port: int, ports: list[int]) -> AsyncIterator[Router]:
    others = tuple(f"http://127.0.0.1:{other}" for other in ports if other != port)
    options = {"port": 0, "admin_port": port, "admin_token": TOKEN, "peers": others, "lame_duck_seconds": 0.0}
    app = App(Settings(workers=workers, **options))
    await app.start()
    try:
        await until(app.is_ready, "the router to be ready")
        yield Router(app, {engine.name: engine for engine in made}, workers, client)
    finally:
        await app.stop()


def totals(router: Router) -> list[int]:
    registry = router.app.services.registry
    return registry.totals(registry.endpoints("decode"))


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
@pytest.mark.parametrize(("count", "reported"), [(2, None), (4, None), (4, 4)])
async def test_no_engine_runs_more_than_the_limit(tmp_path, count, reported):
    async with engines("p0", "p1", "d0", "d1", "d2") as made:
        load = Load(limit=4, seconds=0.05, engines=3)
        for engine in made:
            engine.script = Endless(load.prefill if engine.role == "prefill" else load.decode)
        async with peers(made, tmp_path, count, limit=reported, max_in_flight=load.limit) as routers:
            outcomes: Counter[int] = Counter()

            async def ask(client: int) -> None:
                for turn in itertools.count():
                    if turn >= 8 and outcomes[200] >= 60:
                        break
                    router = routers[(client * turn + client) % count]
                    answer = await router.post(stream=True)
                    outcomes[answer.status_code] += 1
                    await asyncio.sleep(0.01)

            # no stream ends before: the limit is used, not only kept
            await asyncio.wait_for(asyncio.gather(*(ask(client) for client in range(40))), 200)
            assert set(outcomes) <= {200, 429}
            assert max(load.most.values()) <= load.limit, load.most
            await until(lambda: all(router.idle() for router in routers), "all leases to return")
            assert not any(router.counter("retries", cause="rate_limited") for router in routers)


@pytest.mark.slow
async def test_results_wait_for_a_place_though_all_prefills_end_together(tmp_path):
    """Each router admits as many as the engine has places for; what it declines is not computed again."""
    async with engines("p0", "d0") as made:
        held, load = asyncio.Event(), Load(limit=2, seconds=0.2)

        async def hold(exchange: Exchange) -> None:
            await held.wait()
            await prefill(exchange)

        made[0].script, made[1].script = Endless(hold), Endless(load.decode)
        async with peers(made, tmp_path, 2, limit=2, max_in_flight=2) as routers:
            asking = [asyncio.ensure_future(routers[i % 2].post(stream=True)) for i in range(8)]
            await until(lambda: len(made[0].requests) == 4, "two prefills of each router")
            await until(lambda: sum(task.done() for task in asking) == 4, "the rest to be refused")
            held.set()
            outcomes = Counter(answer.status_code for answer in await asyncio.gather(*asking))
            assert outcomes == {200: 4, 429: 4}
            assert load.most["d0"] == 2
            assert len(made[0].requests) == 4, "one prefill each"
            assert len(set(made[1].blocks)) == len(made[1].blocks) == 4


async def test_routers_that_are_cut_off_from_each_other_lose_no_place(tmp_path):
    """Each goes on by what engines report: both together use all places, and no more."""
    fields = {"limit": 8, "max_in_flight": 8}
    async with engines("p0", "d0") as made, peers(made, tmp_path, 2, **fields) as routers:
        others = [peer for router in routers for peer in router.app.services.registry.peers.values()]
        await until(lambda: all(peer.answered_at and not peer.problem for peer in others), "both to answer")
        for router in routers:
            for server, listener in router.app._listeners:
                if server is router.app.admins:
                    listener.close()
            for connection in tuple(router.app.admins.connections):
                connection._transport.abort()
        await until(lambda: all(peer.problem for peer in others), "both to miss each other")
        release = asyncio.Event()
        made[1].script = Endless(slow(release))
        asking = []
        for at in range(8):
            asking.append(asyncio.ensure_future(routers[at % 2].post(stream=True)))
            await until(lambda: made[1].in_flight == len(asking), "it to run")
        await until(lambda: all(totals(router) == [8] for router in routers), "both to see it")
        assert [(await router.post()).status_code for router in routers] == [429, 429]
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.slow
async def test_requests_avoid_those_of_other_routers(tmp_path):
    async with engines("p0", "d0", "d1") as made, peers(made, tmp_path, 2, limit=16) as (first, second):
        release = asyncio.Event()
        for engine in made[1:]:
            engine.script.append(slow(release))
        busy = asyncio.ensure_future(first.post(stream=True))
        await until(first.decoding, "a stream at the first router")
        name = first.decoding()
        await until(lambda: sum(totals(second)) == 1, "the second one to see it")
        assert second.counts() == {"d0": 0, "d1": 0}
        for engine in made[1:]:
            if engine.name != name:
                engine.script.clear()
        for _ in range(4):
            assert (await second.post()).headers["x-eldr-decode"] != name
        release.set()
        await busy
        await until(lambda: sum(totals(second)) == 0, "the end of it to be seen")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["silent", "closed", "unauthorized", "another"])
async def test_a_router_that_says_nothing_delays_nobody(tmp_path, what, caplog):
    """It hangs, is gone, lets nobody ask, or is no router: the others are ready at once, with all places."""
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(engines("p0", "d0", "d1"))
        port, other = free_ports(2)
        if what in ("unauthorized", "another"):
            server = FakeEngine("decode", "other", port=other)
            server.script = Endless(answer(401 if what == "unauthorized" else 200, {}))
            await server.start()
            stack.push_async_callback(server.refuse)
        elif what == "silent":
            stack.enter_context(socket.create_server(("127.0.0.1", other)))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED))
        for engine in made[1:]:
            engine.limit = 4
        workers = tmp_path / "workers.yaml"
        write_workers(workers, made, policy="MarginalUnion", max_in_flight=4)
        router = await stack.enter_async_context(starting(made, workers, client, port, [port, other]))
        made[0].eldr = KINDS["a"]
        await until(lambda: reports(router), "all engines to report")
        release = asyncio.Event()
        for engine in made[1:]:
            engine.script = Endless(slow(release))
        asking = [asyncio.ensure_future(router.post(stream=True)) for _ in range(8)]
        await until(lambda: sum(router.counts().values()) == 8, "all places to be used")
        await until(
            lambda: router.app.services.registry.peers[("127.0.0.1", other)].problem, "why to be reported"
        )
        (peer,) = (await router.state())["peers"]
        assert peer["age"] is None
        assert peer["problem"]
        assert (
            "eldr_router_unreachable_peers 1.0" in router.app.services.telemetry.metrics.exposition().decode()
        )
        reported = [r for r in caplog.records if f"router at 127.0.0.1:{other}" in r.getMessage()]
        assert {r.levelno for r in reported} == {logging.WARNING}
        release.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.slow
async def test_engines_that_report_no_load_are_split_over_all_routers_that_are_listed(tmp_path):
    async with engines("p0", "d0") as made, contextlib.AsyncExitStack() as stack:
        workers, ports = tmp_path / "w", [*free_ports(2), free_port()]  # the third one never starts
        write_workers(workers, made, max_in_flight=8)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED))
        routers = [
            await stack.enter_async_context(starting(made, workers, client, port, ports))
            for port in ports[:2]
        ]
        release = asyncio.Event()
        made[1].script = Endless(slow(release))
        asking = [asyncio.ensure_future(router.post(stream=True)) for router in routers for _ in range(4)]
        await until(lambda: made[1].polls >= 2, "both to be refused a report")
        await until(lambda: sum(task.done() for task in asking) == 4, "the rest to be refused")
        await until(
            lambda: [router.counts() for router in routers] == [{"d0": 2}] * 2, "the others to decode"
        )
        (engine,) = (await routers[0].state())["decode"]
        assert (engine["reports"], engine["bound"], engine["total"]) == (False, 2, 6)
        release.set()
        assert Counter(answer.status_code for answer in await asyncio.gather(*asking)) == {200: 4, 429: 4}


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
        await until(lambda: sum(profiles._merged.values()) >= 32, "the second router to be told")
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
            router.app.services.registry.set_peers([("127.0.0.1", port)])
            router["p0"].eldr = KINDS["a"]
            release = asyncio.Event()
            router.play(slow(release))
            async with router.stream():
                peers = router.app.services.registry.peers
                heard = lambda: peers[("127.0.0.1", port)].answered_at  # noqa: E731
                await until(heard, "it to hear itself")
                since = heard()
                await until(lambda: heard() > since + 0.6, "two turns of tables")
                assert (await router.state())["locality"]["tables"] == 0
                release.set()

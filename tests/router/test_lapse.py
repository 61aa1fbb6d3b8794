"""A router beside one that says nothing any more, as Kubernetes tells of it: it serves, and says truly whether it can."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from eldr import contract
from eldr.clients import UNBOUNDED
from eldr_kube.ports import free_ports
from eldr_router.app import App
from eldr_router.plan import members
from eldr_router.settings import Settings
from eldr_router.sources import pods
from eldr_router.sources.kube import KubeSource
from tests.fakes.api_server import FakeApi, fake_api
from tests.fakes.engines import Exchange, FakeEngine, slow
from tests.router.conftest import DEADLINE, Router, until
from tests.support.router import TOKEN

LATE = b"# TYPE eldr_engine_late_pulls_total counter\n"
pytestmark = pytest.mark.slow


class Pods:
    """Routers as pods of one deployment, each at an address of its own, and what Kubernetes says of them."""

    def __init__(self, api: FakeApi, made: list[FakeEngine], stack: contextlib.AsyncExitStack, admin: int):
        self.api, self.made, self.stack, self.admin = api, made, stack, admin
        self.routers: dict[str, Router] = {}
        self.client: httpx.AsyncClient

    def address(self, name: str) -> str:
        return f"127.31.0.{ord(name[0])}"

    async def tell(self, name: str, *, ready: bool = True, terminating: bool = False) -> None:
        """Write a router's pod."""
        metadata = {"labels": {contract.LABEL_DEPLOYMENT: "x", contract.LABEL_ROUTER: "true"}}
        if terminating:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": str(ready)}]
        pod = {"metadata": metadata, "status": {"podIP": self.address(name), "conditions": conditions}}
        await self.api.put("pods", name, pod)

    async def begin(self, name: str) -> Router:
        """Start a router; it need not be ready."""
        await self.tell(name, ready=False)
        client = ApiClient(Configuration(host=self.api.url))
        self.stack.push_async_callback(client.close)
        app = App(
            Settings(
                source="kubernetes",
                namespace="n",
                deployment="x",
                port=0,
                admin_host=self.address(name),
                admin_port=self.admin,
                admin_token=TOKEN,
                lame_duck_seconds=0.5,
                ready_seconds=0.2,
            )
        )
        source = KubeSource(client, "n", "x", app.control)
        source._own_ip = self.address(name)

        async def this() -> object:
            return source.run

        app._source = this
        await app.start()
        self.stack.push_async_callback(app.stop)
        made = {engine.name: engine for engine in self.made}
        router = self.routers[name] = Router(app, made, None, self.client)
        return router

    async def start(self, name: str) -> Router:
        router = await self.begin(name)
        await until(router.app.is_ready, f"{name} to be ready")
        await self.tell(name)
        return router

    async def listen(self, name: str, what: str) -> None:
        """Have something at an address that is no router that answers."""
        if what == "another":
            other = FakeEngine("decode", self.address(name), host=self.address(name), port=self.admin)
            await other.start()
            self.stack.callback(other.stop_listening)
            return
        listener = self.stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.address(name), self.admin))
        listener.listen(0 if what == "hole" else 128)  # of a stopped process, the kernel accepts connections
        for _ in range(2 if what == "hole" else 0):  # with these it accepts none any more
            held = self.stack.enter_context(socket.socket())
            held.setblocking(False)
            held.connect_ex((self.address(name), self.admin))


@pytest.fixture
async def space(monkeypatch) -> AsyncIterator[Pods]:
    monkeypatch.setattr(members, "LAPSE_SECONDS", 1.5)
    monkeypatch.setattr(members, "STOPPED_SECONDS", 600.0)
    port, admin = free_ports(2)
    monkeypatch.setattr(pods, "PORT_ENGINE", port)
    monkeypatch.setattr(pods, "PORT_ADMIN", admin)
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(fake_api())
        made = []
        for at, (name, role) in enumerate((("p0", "prefill"), ("d0", "decode"))):
            engine = FakeEngine(role, name, host=f"127.30.7.{at + 1}", port=port)
            engine.metrics = metrics
            await engine.start()
            stack.push_async_callback(engine.refuse)
            made.append(engine)
            await api.pod(name, role, engine.host, 0)
        await api.routing(epoch=1, max_in_flight=4)
        found = Pods(api, made, stack, admin)
        found.client = await stack.enter_async_context(httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED))
        yield found


async def metrics(exchange: Exchange) -> None:
    """What an engine with the plug-in says."""
    await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(LATE), LATE))


def bound(router: Router) -> int:
    return router.app.services.registry.bound(router.app.services.registry.endpoints("decode")[0], 4)


async def test_whoever_is_ready_may_serve_from_then_on(space):
    """All start together: none is ready with a bound of 0, and each serves within 15 s."""
    routers = await asyncio.gather(*(space.begin(name) for name in "abc"))

    def truthful() -> bool:
        ready = [router.app.is_ready() for router in routers]
        assert all(bound(router) for router, is_ready in zip(routers, ready, strict=True) if is_ready)
        return all(ready)

    await until(truthful, "all of them to be ready", 15)
    assert [(await router.post()).status_code for router in routers] == [200] * 3


@pytest.mark.parametrize("told", [{"ready": False}, {"terminating": True}])
@pytest.mark.parametrize("what", ["stopped", "hole", "another"])
async def test_a_router_that_starts_beside_one_that_says_nothing(space, what, told):
    await space.listen("old", what)
    await space.tell("old", **told)
    router = await space.begin("new")
    await until(router.app.is_ready, "it to be ready")
    assert bound(router) == 2, "the other one may have its part in use"
    assert (await router.post()).status_code == 200
    (peer,) = shares(router).peers.values()
    await until(lambda: "is divided" in str(peer.problem), "the lapse to be told")
    assert (await router.state())["share"]["awaited"] == []


@pytest.mark.parametrize("deadlines", [True, False])
async def test_a_router_without_any_room_is_not_ready(space, deadlines):
    """Kubernetes says that the silent one is well; or it does not, but engines would pull late."""
    if not deadlines:
        space.made[1].metrics = None
    await space.listen("old", "stopped")
    await space.tell("old", ready=deadlines)
    router = await space.begin("new")
    await until(lambda: any(p.problem for p in shares(router).peers.values()), "the silence to be told")
    await until(lambda: asked(router), "the engine to be asked")
    end = members.LAPSE_SECONDS * 2 + asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < end:
        assert not router.app.is_ready()
        await asyncio.sleep(0.01)
    answer = await router.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
    assert space.address("old") in answer.json()["error"]["message"]
    assert (await router.client.get(f"{router.url}/ready")).status_code == 503


@contextlib.asynccontextmanager
async def streaming(space: Pods) -> AsyncIterator[tuple[Router, Router, asyncio.Event]]:
    """Two routers that have their parts; the second has a stream, until it is released."""
    first, second = [await space.start(name) for name in "ab"]
    await until(lambda: bound(first) == bound(second) == 2, "both to have their part")
    release = asyncio.Event()
    space.made[1].script.append(slow(release))
    async with second.stream():
        yield first, second, release


async def test_a_node_is_lost_and_comes_back(space):
    async with streaming(space) as (first, second, release):
        await until(lambda: told(first) == 1, "the first one to hear of the stream")
        handler, held = second.app.admins.handler, asyncio.Event()
        second.app.admins.handler = lambda request, client: client.run(held.wait())
        await space.tell("b", ready=False)
        await until(lambda: bound(first) == 3, "what was not used")
        space.made[1].script.extend([slow(release)] * 3)
        async with first.stream(), first.stream(), first.stream():
            assert (await first.post()).status_code == 429
            second.app.admins.handler = handler
            held.set()
            await space.tell("b")
            await until(lambda: bound(first) == 2, "its part to be given back")
            await until(lambda: len(shares(second).view.members) == 2 and not shares(second).awaited, "both")
            assert sum(router.app.services.registry.counts()["d0"] for router in (first, second)) == 4
            assert (await second.post()).status_code == 429, "four run"
            release.set()
    await until(lambda: bound(first) == bound(second) == 2, "both to have their part")


@pytest.fixture
def patient(monkeypatch, space):
    """Have nobody lapse: a machine that stands still for a moment makes routers silent, too."""
    monkeypatch.setattr(members, "LAPSE_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
async def test_a_router_that_drains_leaves_what_it_does_not_use(space):
    async with streaming(space) as (first, second, release):
        draining = asyncio.ensure_future(second.app.drain())
        await space.tell("b", ready=False, terminating=True)
        await until(lambda: bound(first) == 3, "all but the stream")
        third = await space.start("c")
        assert bound(third) >= 1
        await until(lambda: bound(first) + bound(third) == 3, "the rest")
        release.set()
        await draining
    await second.app.stop()
    await space.api.put("pods", "b", None)
    await until(lambda: bound(first) == bound(third) == 2, "both to have their part")


@pytest.mark.usefixtures("patient")
async def test_a_rollout_of_routers_under_traffic_refuses_nobody(space):
    await space.api.routing(epoch=1, max_in_flight=64)
    serving = [await space.start(name) for name in "ab"]
    outcomes, done = [], asyncio.Event()

    async def ask(turn: int) -> None:
        while not done.is_set():
            turn += 1
            outcomes.append((await serving[turn % len(serving)].post()).status_code)

    asking = [asyncio.ensure_future(ask(turn)) for turn in range(4)]
    for new, old in (("c", "a"), ("d", "b")):
        serving.append(await space.start(new))
        leaving = space.routers[old]
        serving.remove(leaving)
        await space.tell(old, ready=False, terminating=True)
        await leaving.app.drain()
        await leaving.app.stop()
        await space.api.put("pods", old, None)
        await until(lambda: all(len(shares(each).view.members) == 2 for each in serving), "two members")
        seen = len(outcomes)
        await until(lambda n=seen: len(outcomes) > n + 20, "traffic")
    done.set()
    await asyncio.gather(*asking)
    assert set(outcomes) == {200}


def shares(router: Router):
    return router.app.services.registry.shares


def told(router: Router) -> int:
    registry = router.app.services.registry
    return sum(registry.totals(registry.endpoints("decode")))


def asked(router: Router) -> bool:
    return any(seen.path == "/metrics" for seen in router["d0"].seen)

"""The kubernetes source against an API server that refuses, ends, hangs and flaps: requests are counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from eldr import centroids, contract, credentials
from eldr.async_credentials import adapted
from eldr_router.app import App
from eldr_router.settings import Settings
from eldr_router.sources import follow, routing
from eldr_router.sources.kube import KubeSource
from tests.fakes.api_server import FakeApi, fake_api, status
from tests.router.conftest import until
from tests.router.test_routing import make_set

ROUTING = contract.routing_name("x")


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as made:
        await made.pod("x-decode-0", "decode", "127.30.0.1", 0)
        await made.routing(epoch=1)
        yield made


@pytest.fixture
def quick(monkeypatch) -> None:
    """Short waits, for tests of what happens in the end."""
    monkeypatch.setattr(follow, "_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(follow, "_MOST_SECONDS", 0.1)
    monkeypatch.setattr(follow, "_GOOD_SECONDS", 0.3)


class Waits:
    """Pauses that followers ask for, each follower's own; none takes its time."""

    def __init__(self) -> None:
        self._asked: defaultdict[object, list[float]] = defaultdict(list)

    async def sleep(self, seconds: float) -> None:
        self._asked[asyncio.current_task()].append(seconds)
        await asyncio.sleep(0.01)

    @property
    def each(self) -> list[list[float]]:
        return list(self._asked.values())

    async def until(self, followers: int, tries: int) -> None:
        def tried() -> bool:
            return sum(len(asked) >= tries for asked in self.each) >= followers

        await until(tried, f"{tries} tries of {followers}")


@pytest.fixture
def waits(monkeypatch) -> Waits:
    made = Waits()
    loop = asyncio.get_running_loop
    monkeypatch.setattr(follow, "asyncio", SimpleNamespace(sleep=made.sleep, get_running_loop=loop))
    return made


def double(asked: list[float], first: float) -> bool:
    """Whether each pause is twice as long as the one before, but for chance, up to the longest."""
    wanted = [min(follow._MOST_SECONDS, first * 2.0**n) for n in range(len(asked))]
    return all(most / 2 <= found <= most for found, most in zip(asked, wanted, strict=True))


def following(api: FakeApi, tmp_path, configuration: Configuration | None = None):
    return follower(ApiClient(configuration or Configuration(host=api.url)), "n", tmp_path)


@contextlib.asynccontextmanager
async def follower(client: ApiClient, namespace: str, folder: Path) -> AsyncIterator[App]:
    """A router that follows the deployment ``x`` of a namespace."""
    app = App(Settings(workers=folder / "unused", port=0, admin_port=0))
    source = KubeSource(client, namespace, "x", app.routing)

    async def this() -> object:
        return source.run

    app._source = this
    await app.start()
    try:
        yield app
    finally:
        await app.stop()
        await client.close()


def names(app: App, role: str = "decode") -> list[str]:
    return [endpoint.name for endpoint in app.services.registry.endpoints(role)]


def told(caplog) -> list[str]:
    """What was logged about the source, except that it works."""
    sources = ("eldr_router.sources.routing", "eldr_router.sources")
    records = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith(sources)]
    return [r.getMessage() for r in records]


@pytest.mark.slow
@pytest.mark.parametrize("code", [403, 429, 500])
async def test_a_refused_watch_is_asked_for_less_and_less(api, tmp_path, caplog, waits, code):
    async def refuse(what: str, request: web.Request) -> web.Response | None:
        return status(code, "not now") if what.startswith("watch") else None

    api.hook = refuse
    async with following(api, tmp_path) as app:
        await waits.until(2, tries=8)
        assert names(app) == ["x-decode-0"], "what was listed is in effect"
        assert str(code) in app.routing.problem
        assert all(double(asked, follow._FIRST_SECONDS) for asked in waits.each), waits.each
        assert len(told(caplog)) <= 2, "a line per change, not per try"
        api.hook = None
        await until(lambda: app.routing.problem is None, "the watch to be tried again")


async def test_a_watch_that_ends_at_once_does_not_spin(api, tmp_path, caplog, waits):
    async def end(what: str, request: web.Request) -> web.StreamResponse | None:
        return await api.watch(request, seconds=0) if what.startswith("watch") else None

    api.hook = end
    async with following(api, tmp_path) as app:
        await waits.until(2, tries=8)
        assert all(double(asked, follow._FIRST_SECONDS) for asked in waits.each), waits.each
        assert "ends" in app.routing.problem, "somebody should know why changes arrive late"
        assert len(told(caplog)) <= 2
        await api.pod("x-decode-1", "decode", "127.30.0.2", 1)
        await until(lambda: len(names(app)) == 2, "changes to arrive all the same")


@pytest.mark.slow
async def test_pauses_begin_anew_after_a_watch_that_lived(api, tmp_path, waits, monkeypatch):
    monkeypatch.setattr(follow, "_GOOD_SECONDS", 0.05)

    async def every_fourth_lives(what: str, request: web.Request) -> web.StreamResponse | None:
        if not what.startswith("watch"):
            return None
        return status(500, "not now") if api.seen[what] % 4 else await api.watch(request, seconds=0.5)

    api.hook = every_fourth_lives
    async with following(api, tmp_path):
        await waits.until(2, tries=8)
        for asked in waits.each:
            assert asked[3] == asked[7] == 0.0
            assert double(asked[:3], follow._FIRST_SECONDS), asked
            assert double(asked[4:7], follow._FIRST_SECONDS), asked


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_watch_that_is_too_old_lists_again_at_once_but_does_not_spin(
    api, tmp_path, caplog, waits, as_event
):
    problems: list[str | None] = []

    async def gone(what: str, request: web.Request) -> web.StreamResponse | None:
        if not what.startswith("watch"):
            if what == "list pods":
                problems.append(app.routing.problem)
            return None
        return await api.watch(request, seconds=0, last=GONE) if as_event else status(410, "too old")

    api.hook = gone
    async with following(api, tmp_path) as app:
        await waits.until(2, tries=6)
        for at_once, *later in waits.each:
            assert at_once == 0.0
            assert double(later, 2 * follow._FIRST_SECONDS), later
        assert "pods" not in (problems[1] or ""), "that is ordinary"
        assert "410" in app.routing.problem, "for ever is not"
        assert len(told(caplog)) <= 2


async def test_the_time_that_the_server_asks_for_is_given(api, tmp_path, waits):
    async def busy(what: str, request: web.Request) -> web.Response | None:
        return status(429, "too many requests", retry_after=6) if what == "list pods" else None

    api.hook = busy
    async with following(api, tmp_path) as app:
        await until(lambda: "429" in (app.routing.problem or ""), "the refusal")
        await waits.until(1, tries=3)
        (asked,) = waits.each
        assert asked[:3] == [6.0, 6.0, 6.0]
        api.hook = None
        await until(lambda: names(app) == ["x-decode-0"], "the pods after all")


@pytest.mark.slow
async def test_an_ordinary_end_of_a_watch_costs_nothing(api, tmp_path, quick, caplog):
    async def short(what: str, request: web.Request) -> web.StreamResponse | None:
        return await api.watch(request, seconds=0.5) if what.startswith("watch") else None

    api.hook = short
    async with following(api, tmp_path) as app:
        await until(lambda: api.seen["watch pods"] >= 4, "several watches")
        assert (api.seen["list pods"], api.seen[f"get {ROUTING}"]) == (1, 1), (
            "each goes on where the last ended"
        )
        assert app.routing.problem is None
        assert not told(caplog)


@pytest.mark.slow
async def test_a_token_that_expired_is_read_again(api, tmp_path, quick, monkeypatch):
    token, certificates = tmp_path / "token", tmp_path / "ca"
    token.write_text("old")
    certificates.write_text("unused over http")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
    loader = InClusterConfigLoader(token, str(certificates), environ=environ)
    loader._token_refresh_period /= 200
    configuration = credentials.Configuration()
    loader._load_config()
    loader.host, loader.ssl_ca_cert = api.url, None
    loader._set_config(configuration)
    good = "bearer old"

    async def guarded(what: str, request: web.Request) -> web.StreamResponse | None:
        if request.headers["authorization"] != good:
            return status(401, "Unauthorized")
        return await api.watch(request, seconds=0.4) if what.startswith("watch") else None

    api.hook = guarded
    async with following(api, tmp_path, adapted(configuration)) as app:
        await until(lambda: names(app) == ["x-decode-0"] and app.services.table.epoch == 1, "the first token")
        good = "bearer new"
        await until(lambda: "401" in (app.routing.problem or ""), "it to expire")
        assert names(app) == ["x-decode-0"], "what was read last stays in effect"
        token.write_text("")  # as it is written anew
        await until(lambda: "token" in (app.routing.problem or "").lower(), "the empty file to be told")
        token.write_text("new")
        await api.routing(epoch=2)
        await until(lambda: app.services.table.epoch == 2, "the new token")
        await until(lambda: app.routing.problem is None, "the end of the problem")


@pytest.mark.slow
async def test_a_flapping_server(api, tmp_path, quick, caplog):
    async with following(api, tmp_path) as app:
        await until(lambda: names(app) and app.services.table.epoch == 1, "the first state")
        for turn in range(2, 5):
            caplog.clear()
            await api.stop()
            await until(lambda: "cannot be reached" in (app.routing.problem or ""), "the outage to be told")
            await asyncio.sleep(0.5)
            assert len(told(caplog)) <= 4, told(
                caplog
            )  # the watch broke, the list cannot be reached; two of each
            assert names(app)
            assert app.services.table.epoch == turn - 1, "the last state stays in effect"
            api.history.clear()
            await api.pod(f"x-decode-{turn}", "decode", f"127.30.0.{turn}", turn)
            await api.routing(epoch=turn)
            await api.start()
            await until(lambda t=turn: app.services.table.epoch == t, "the new table")
            await until(lambda t=turn: f"x-decode-{t}" in names(app), "the new pod")
            await until(lambda: app.routing.problem is None, "the end of the problem")


async def test_a_slow_shard_holds_up_nothing(api, tmp_path):
    first, second = (centroids.dump(make_set(seed=seed)) for seed in (1, 2))
    active, slow = await api.shard("f-1", first), await api.shard("g-1", second)
    release = asyncio.Event()

    async def hang(what: str, request: web.Request) -> None:
        if what == "get g-1":
            await release.wait()

    api.hook = hang
    await api.routing(epoch=1, active=active)
    async with following(api, tmp_path) as app:
        table = app.services
        await until(lambda: table.table.active, "the first set")
        await api.routing(epoch=2, active=slow)
        await until(lambda: api.seen["get g-1"], "the load to hang")
        await api.routing(epoch=3, active=active, policy="ELDR", tau=0.5)
        await until(lambda: table.table.epoch == 3, "the rollback", seconds=8)
        assert table.table.active.fit == "f"
        assert table.table.policy.tau == 0.5
        assert api.seen["get f-1"] == 1, "it was at hand"
        await api.routing(epoch=3, active=active, staged=slow, policy="ELDR")
        await until(lambda: api.seen["get g-1"] == 2, "the load that was given up to begin again")
        await api.routing(epoch=4, active=slow, policy="ELDR", tau=0.25)
        await until(lambda: table.table.policy.tau == 0.25, "the settings", seconds=8)
        assert table.table.epoch == 3
        release.set()
        await until(lambda: table.table.epoch == 4, "the set at last")
        assert api.seen["get g-1"] == 2, "wanted before and after: loaded once"


async def test_a_router_that_is_refused_and_reaches_no_decode_engine_is_not_ready(
    api, tmp_path, monkeypatch, quick
):
    """Else every request fails at a router that the Service goes on sending clients to."""
    code, refused = 401, True

    async def refuse(what: str, request: web.Request) -> web.Response | None:
        return status(code, "Unauthorized") if refused else None

    monkeypatch.setattr(routing, "_CUT_OFF_SECONDS", 0.2)
    async with following(api, tmp_path) as app:
        await until(app.is_ready, "the router to be ready")
        (engine,) = app.services.registry.endpoints("decode")
        api.hook = refuse
        await api.stop()
        await api.start()
        await until(lambda: app.routing.problem and "401" in app.routing.problem, "the refusal")
        engine.health.probed(well=True)
        since = app.routing._refused_since
        await until(lambda: app.services.clock() - since > 0.2, "the time to be over")
        assert app.is_ready(), "its engine serves"
        engine.health.probed(well=False)
        assert not app.is_ready()
        code = 500
        await until(lambda: "500" in app.routing.problem, "another error")
        assert not app.is_ready(), "the refusal is not over"
        refused = False
        await until(app.is_ready, "the refusal to end")


async def test_a_router_whose_api_server_is_away_stays_ready(api, tmp_path, monkeypatch, quick):
    """It knows what it knew, and so do all others."""

    async def fail(what: str, request: web.Request) -> web.Response | None:
        return status(500, "etcd is away")

    monkeypatch.setattr(routing, "_CUT_OFF_SECONDS", 0.0)
    async with following(api, tmp_path) as app:
        await until(app.is_ready, "the router to be ready")
        api.hook = fail
        await api.stop()
        await api.start()
        await until(lambda: app.routing.problem and "500" in app.routing.problem, "the failure")
        (engine,) = app.services.registry.endpoints("decode")
        engine.health.probed(well=False)
        assert app.is_ready()

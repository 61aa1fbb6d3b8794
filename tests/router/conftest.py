"""A router inside the test's own event loop, against scripted engines over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvloop

from eldr.clients import UNBOUNDED
from eldr.wire import ExpertCounts, encode_counts
from eldr_router.app import App
from eldr_router.engines import health
from eldr_router.engines.load_poller import LoadPoller
from eldr_router.engines.probes import Probes
from eldr_router.settings import Settings
from tests.fakes.engines import Behaviour, FakeEngine, engines
from tests.support.files import put
from tests.support.router import AUTH, TOKEN

_TURN = LoadPoller._turn
DEADLINE = 120.0
"""Of a machine that is busy: what never comes fails its test all the same."""
QUICK = {"prefill_timeout_seconds": 0.5, "decode_idle_timeout_seconds": 0.5, "connect_timeout_seconds": 5.0}
"""Settings of an impatient router."""


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def unprobed(monkeypatch) -> None:
    """No engine is asked in its turn, which begins a moment after the start: a slow test would meet that request.

    It stands among those that the engine has seen, and leaves a connection behind, which may be stale where it is reused.
    """
    monkeypatch.setattr(Probes, "_turn", lambda _: None)
    monkeypatch.setattr(LoadPoller, "_turn", lambda _: None)


@pytest.fixture
def polled(monkeypatch, unprobed) -> None:
    """Engines are asked for their load."""
    monkeypatch.setattr(LoadPoller, "_turn", _TURN)


@pytest.fixture
def long_ejections(monkeypatch):
    """Ejected engines stay so, however slow the machine is."""
    monkeypatch.setattr(health, "_FIRST_EJECTION", 600.0)
    monkeypatch.setattr(health, "_LONGEST_EJECTION", 600.0)


async def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.005)


def counter(app: App, name: str, **labels: str) -> float:
    """Sum of a counter's series with these labels."""
    want = {f'{key}="{value}"' for key, value in labels.items()}
    total = 0.0
    for series, value in app.services.telemetry.metrics.totals().items():
        base, _, rest = series.partition("{")
        if base == f"eldr_router_{name}_total" and want <= set(rest.rstrip("}").split(",")):
            total += value
    return total


@dataclass
class Router:
    """A running router and the engines behind it."""

    app: App
    engines: dict[str, FakeEngine]
    workers: Path
    client: httpx.AsyncClient

    def __getitem__(self, name: str) -> FakeEngine:
        return self.engines[name]

    @property
    def url(self) -> str:
        host, port = self.app.addresses[0]
        return f"http://{host}:{port}"

    @property
    def admin(self) -> str:
        host, port = self.app.addresses[1]
        return f"http://{host}:{port}"

    async def post(self, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any):
        body = {"model": "m", "prompt": "hello", **body}
        return await self.client.post(self.url + path, json=body, headers=headers)

    def play(self, *behaviours: Behaviour, at: tuple[str, ...] = ("d0", "d1"), times: int = 1) -> None:
        """Let engines behave so with the next requests that each of them gets."""
        for name in at:
            self[name].script.extend(behaviours * times)

    def stream(self) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Ask for a stream whose pieces the test reads as they come."""
        body = {"model": "m", "prompt": "x", "stream": True}
        return self.client.stream("POST", f"{self.url}/v1/completions", json=body)

    async def state(self) -> dict[str, Any]:
        answer = await self.client.get(f"{self.admin}/eldr/v1/state", headers=AUTH)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def counter(self, name: str, **labels: str) -> float:
        return counter(self.app, name, **labels)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.app.addresses[0])

    async def configure(self, **fields: Any) -> None:
        """Rewrite the worker file and wait until it is in effect."""
        routing, services = self.app.routing, self.app.services
        before = routing._document
        write_workers(self.workers, list(self.engines.values()), **fields)
        await until(lambda: routing._document is not before, "the worker file to be read")
        await until(lambda: services.table.document is routing._document, "it to be in effect")

    def in_flight(self) -> dict[str, int]:
        registry = self.app.services.registry
        return {
            endpoint.name: endpoint.in_flight
            for role in ("prefill", "decode")
            for endpoint in registry.endpoints(role)
        }

    def decoding(self) -> str | None:
        """Name of a decode engine that has a request: counted here, and read there, for its connection may still be made."""
        counts = self.counts()
        return next((name for name in self.engines if counts.get(name) and self[name].requests), None)

    async def poll(self) -> None:
        """Ask every decode engine for its load, as the router does now and then."""
        for endpoint in self.app.services.registry.endpoints("decode"):
            await self.app._loads._ask(endpoint)

    def counts(self) -> dict[str, int]:
        """Sequences of this router in flight by decode engine."""
        return {e.name: e.in_flight for e in self.app.services.registry.endpoints("decode")}

    def idle(self) -> bool:
        registry = self.app.services.registry
        return not (any(self.in_flight().values()) or registry._reserved)

    def pulled_once(self) -> None:
        """No prefill result was sent to two decode engines that may have pulled it."""
        blocks = [block for engine in self.engines.values() for block in engine.blocks]
        twice = sorted({block for block in blocks if blocks.count(block) > 1})
        assert not twice, "a prefill result was used twice"


def write_workers(path: Path, running: list[FakeEngine], **fields: Any) -> None:
    described = {
        role: [{"name": e.name, "url": e.url, "kv": e.kv} for e in running if e.role == role]
        for role in ("prefill", "decode")
    }
    document = {"model": "m", **described, **fields}
    put(path, json.dumps(document).encode())


@pytest.fixture
def start(tmp_path: Path):
    """Start routers: ``async with start("p0", "d0") as router``."""

    @contextlib.asynccontextmanager
    async def run(
        *names: str, settings: dict[str, Any] | None = None, **fields: Any
    ) -> AsyncIterator[Router]:
        async with engines(*names) as made, serving(made, tmp_path, settings, **fields) as router:
            yield router
            router.pulled_once()

    return run


@contextlib.asynccontextmanager
async def serving(
    made: list[FakeEngine], folder: Path, settings: dict[str, Any] | None = None, **fields: Any
) -> AsyncIterator[Router]:
    options: dict[str, Any] = {"port": 0, "admin_port": 0, "admin_token": TOKEN, "lame_duck_seconds": 0.0}
    options |= settings or {}
    options.setdefault("workers", folder / "workers.yaml")
    write_workers(options["workers"], made, **fields)
    # on a busy machine an engine of this process may accept late; a port that nobody listens on refuses at once
    app = App(Settings(**{"connect_timeout_seconds": DEADLINE} | options))
    async with httpx.AsyncClient(timeout=DEADLINE, limits=UNBOUNDED) as client:
        await app.start()
        try:
            router = Router(app, {engine.name: engine for engine in made}, options["workers"], client)
            await until(app.is_ready, "the router to be ready")
            yield router
            await until(router.idle, "in-flight counts to return to zero")
        finally:
            await app.stop()


def signature(*values: int) -> dict[str, Any]:
    """Return exact counts of 2 layers x 4 experts, top 2, as an engine sends them."""
    counts = np.array(values, dtype=np.uint16).reshape(2, 4)
    return encode_counts(ExpertCounts(counts, top_k=2, tokens=int(counts.sum()) // 4, exact=True))

"""The process: its parts put together, started, and drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np

from eldr.addresses import authority
from eldr.siglog import SignatureLog
from eldr_router.admin.locality import LocalityMetrics
from eldr_router.admin.server import Admin
from eldr_router.api.guard import Guard
from eldr_router.engines.load_poller import LoadPoller
from eldr_router.engines.probes import Probes
from eldr_router.engines.registry import Registry
from eldr_router.flow.client_port import ClientPort
from eldr_router.flow.services import Services
from eldr_router.http.requests import Budget
from eldr_router.net.handshake import Handshake
from eldr_router.net.inbound import Server
from eldr_router.net.pool import Pool
from eldr_router.placement.engine_metrics import EngineMetricsPoller
from eldr_router.placement.peers import Peers
from eldr_router.placement.placer import Placer
from eldr_router.settings import Settings, parse_peers
from eldr_router.sources.file import FileSource
from eldr_router.sources.routing import Routing
from eldr_router.sources.secrets import Secrets
from eldr_router.telemetry import tracing
from eldr_router.telemetry.joiner import Joiner
from eldr_router.telemetry.journal import Journal
from eldr_router.telemetry.metrics import Metrics
from eldr_router.telemetry.request import Telemetry

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_SWEEP_SECONDS = 1.0
_TICK_SECONDS = 0.25
_MAX_ADMIN_BODY = 1 << 20
_FEW_FILES = 4096
_OWN_FILES = 64
_BACKLOG = 4096


class App:
    """One router."""

    def __init__(self, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._loop = loop
        self._started = loop.time()
        self.draining = False
        router = os.urandom(4).hex()
        registry = Registry(time.monotonic)
        metrics = Metrics(registry)
        self.secrets = Secrets(settings)
        pool = Pool(loop, connect_timeout=settings.connect_timeout_seconds, trust=lambda: self.secrets.trust)
        probes = Probes(registry, pool, time.monotonic)
        placer = Placer(registry, np.random.default_rng())
        locality = placer.locality
        joiner = Joiner(
            _signature_log(settings),
            pool=pool,
            registry=registry,
            metrics=metrics,
            router=router,
            wall=time.time,
            join_seconds=settings.join_seconds,
            sample_rate=lambda: self.services.table.document.sample_rate,
            finished=locality.savings.finished,
            written=locality.traffic.wrote,
        )
        journal = Journal(access=settings.access_log)
        self.services = Services(
            settings,
            loop,
            registry,
            pool,
            placer,
            Telemetry(router, metrics, joiner, journal, tracing.start(os.environ), time.monotonic, time.time),
            probes,
        )
        self._loads = LoadPoller(registry, pool, time.monotonic)
        self._engine_metrics = EngineMetricsPoller(registry, pool, locality)
        metrics.add(LocalityMetrics(locality, registry))
        self.routing = Routing(
            registry, pool, locality=locality, affinity=self.services.affinity, metrics=metrics, clock=time.monotonic, use=self.services.use
        )  # fmt: skip
        client_port = ClientPort(self.services, self.is_ready)
        guard = Guard(client_port.handle, lambda: self.secrets.keys, metrics.unauthorized)
        admin = Admin(
            registry,
            placer,
            self.services.telemetry,
            self.routing,
            is_ready=self.is_ready,
            is_draining=lambda: self.draining,
            token=lambda: self.secrets.admin_token,
        )
        self.clients = Server(
            guard, loop, settings.max_body, Budget(settings.max_bodies),
            idle_timeout=settings.client_idle_timeout_seconds, check=guard.check,
        )  # fmt: skip
        self.admins = Server(admin.handle, loop, _MAX_ADMIN_BODY, Budget(_MAX_ADMIN_BODY << 4))
        metrics.body_bytes.set_function(lambda: self.clients.budget.held)
        self._listeners: list[tuple[Server, asyncio.Server]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.addresses: list[tuple[str, int]] = []

    def is_ready(self) -> bool:
        """Return whether new clients should come.

        A router that is cut off is not ready: others may know engines that serve.
        """
        if self.draining or self.routing.is_cut_off:
            return False
        return self.routing.settled or self._loop.time() - self._started > self._settings.ready_seconds

    async def start(self) -> None:
        """Listen and begin the background work; OSError if a port cannot be bound."""
        settings = self._settings
        files = _raise_file_limit()
        self.clients.max_connections = _connections(files)
        self.clients.max_refused = self._backlog = _backlog(files)
        self.addresses = [
            await self._listen(self.clients, settings.host, settings.port),
            await self._listen(self.admins, settings.admin, settings.admin_port),
        ]
        if (traces := self.services.telemetry.tracing) is not None:
            traces.address = self.addresses[0]
        if settings.loopback:
            await self._listen_on_loopback(self.addresses[0][1])
        services = self.services
        peers = Peers(
            router=services.telemetry.router,
            registry=services.registry,
            pool=services.pool,
            locality=services.placer.locality,
            clock=services.clock,
            token=lambda: self.secrets.admin_token,
        )
        for name, work in (
            ("source", await self._source()),
            ("centroids", self.routing.run),
            ("joiner", self.services.telemetry.joiner.run),
            ("loads", self._loads.run),
            ("peers", peers.run),
            ("probes", self.services.probes.run),
            ("secrets", self.secrets.run),
            ("engine metrics", self._engine_metrics.run),
            ("sweep", self._sweep),
            ("ticks", self._ticks),
        ):
            self._tasks.append(self._loop.create_task(_forever(name, work), name=name))

    async def _listen(self, server: Server, host: str, port: int) -> tuple[str, int]:
        tls = self.secrets.tls if server is self.clients else self.secrets.admin_tls
        protocol = server.protocol if tls is None else partial(Handshake, server, tls)
        listener = await self._loop.create_server(protocol, host, port, backlog=self._backlog)
        self._listeners.append((server, listener))
        address, bound = listener.sockets[0].getsockname()[:2]
        return address, bound

    async def _listen_on_loopback(self, port: int) -> None:
        try:
            await self._listen(self.clients, _LOOPBACK, port)
        except OSError as error:  # of all pods of a node that is one machine, the first has it
            log.info("clients: not on %s:%d: %s", _LOOPBACK, port, error)

    async def _source(self) -> Callable[[], Awaitable[None]]:
        settings = self._settings
        if settings.source == "kubernetes":
            from eldr_router.sources.api import connect
            from eldr_router.sources.kube import KubeSource

            self._api = await connect()
            return KubeSource(self._api, settings.namespace, settings.deployment, self.routing).run
        assert settings.workers is not None  # noqa: S101 - Settings checks it
        addresses, names = parse_peers(settings.peers)
        self.routing.set_peers(addresses, names=names)
        return FileSource(settings.workers, settings.centroids, self.routing).run

    async def _sweep(self) -> None:
        before = self._loop.time()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._loop.time()
            self.services.pool.sweep(now - before)
            self.clients.sweep()
            self.admins.sweep()
            before = now

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.services.tick()

    async def drain(self) -> None:
        """Refuse new requests, and finish the running ones in time."""
        settings = self._settings
        deadline = self._loop.time() + settings.drain_seconds
        self.draining = self.clients.draining = True  # from now on answers say that the connection closes
        self.services.queue.close()
        log.info("draining: %d requests in progress", self.clients.busy)
        await asyncio.sleep(min(settings.lame_duck_seconds, settings.drain_seconds))
        for server, listener in self._listeners:
            if server is self.clients:
                listener.close()
        self.clients.close_idle()
        while self.clients.busy and self._loop.time() < deadline:
            await asyncio.sleep(0.05)
            self.clients.close_idle()
        if self.clients.busy:
            log.warning("drain time is over; %d requests are cut off", self.clients.busy)

    async def stop(self) -> None:
        """Stop everything at once."""
        for _, listener in self._listeners:
            listener.close()
        for server in (self.clients, self.admins):
            server.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _until(lambda: not any(s.connections or s.handshakes for s in (self.clients, self.admins)))
        await self.services.stop()
        await self.services.telemetry.joiner.close()
        if (traces := self.services.telemetry.tracing) is not None:
            await traces.close()
        self.services.pool.close()
        await _until(lambda: not len(self.services.pool))
        if hasattr(self, "_api"):
            await self._api.close()


def _raise_file_limit() -> int:
    """Allow this process as many files as it may have, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    if 0 <= soft < _FEW_FILES:
        log.warning("only %d files may be open: at most %d client connections", soft, _connections(soft))
    return soft


def _connections(files: int) -> int:
    """Return how many clients so many open files serve: each may need a connection of its own, one to an engine and one to free KV."""
    return 1 << 20 if files < 0 else max(1, (files - _OWN_FILES - _backlog(files)) // 3)


def _backlog(files: int) -> int:
    """Return how many connections may wait for their acceptance: all of them are accepted at once, if only to be refused."""
    return _BACKLOG if files < 0 else max(1, min(_BACKLOG, files // 4))


def _signature_log(settings: Settings) -> SignatureLog | None:
    if settings.log_dir is None:
        return None
    return SignatureLog(
        settings.log_dir, max_bytes=settings.log_bytes, max_age=settings.log_seconds, now=time.time()
    )


async def _until(condition: Callable[[], bool], turns: int = 1000) -> None:
    """Let cancelled work and aborted connections run to their end."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)


async def _forever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run background work; a bug in it is logged and the work begins anew, traffic goes on."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed; it starts again", name)
        await asyncio.sleep(1.0)


async def serve(settings: Settings) -> None:
    """Run a router until SIGTERM or SIGINT, and drain it.

    A second signal ends it at once.
    """
    loop = asyncio.get_running_loop()
    app = App(settings)
    asked, insisted = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await app.start()
    gc.collect()
    gc.set_threshold(10_000, 20, 50)  # requests make no cycles: look for them seldom
    gc.freeze()  # what is alive now lives for ever: keep it out of every later collection
    ports = {"clients": app.secrets.tls, "admin": app.secrets.admin_tls}
    for (what, tls), address in zip(ports.items(), app.addresses, strict=True):
        log.info("%s: %s://%s", what, "http" if tls is None else "https", authority(*address))
    await asked.wait()
    drain = loop.create_task(app.drain())
    insist = loop.create_task(insisted.wait())
    await asyncio.wait((drain, insist), return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, insist):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await app.stop()

"""Puts the operator together and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import start_http_server

from eldr import contract
from eldr_operator import build
from eldr_operator.clock import Clock, SteadyClock, utc_now
from eldr_operator.connections import make_room
from eldr_operator.controller import Controller
from eldr_operator.errors import ApiError, ApiUnavailableError, LeaseLostError, OperatorError
from eldr_operator.health import Health, served
from eldr_operator.kube.api import Api, Object, connect
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.authorities import Authorities
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.cluster import Cluster
from eldr_operator.kube.lease import Lease
from eldr_operator.kube.queue import WorkQueue
from eldr_operator.kube.recorder import Recorder
from eldr_operator.kube.served import Served
from eldr_operator.kube.streams import Streams
from eldr_operator.kube.tokens import Tokens, load
from eldr_operator.locality import routers
from eldr_operator.locality.polls import Polls
from eldr_operator.locality.reconciler import Locality
from eldr_operator.manager import Manager
from eldr_operator.metrics import Metrics
from eldr_operator.reconcile import (
    CENTROID_KINDS,
    CENTROIDS_REST_SECONDS,
    POLL_SECONDS,
    WORKLOAD_KINDS,
    WRITTEN_BESIDE_CENTROIDS,
    WRITTEN_BY_WORKLOADS,
    Centroids,
    Common,
    Workloads,
)
from eldr_operator.reporter import Reporter
from eldr_operator.settings import Settings
from eldr_operator.watching import watched
from eldr_operator.workloads.children import Children
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from eldr_operator.workloads.secret import AdminSecrets

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0


async def serve(settings: Settings) -> None:
    """Run the operator until SIGTERM.

    An API server that is away or refuses is waited for. An operator that has lost its Lease begins again with nothing remembered: another one
    may have acted meanwhile.

    Raises
    ------
    OperatorError
        If there is no cluster, the custom resources are not served, or the operator's own key is damaged.
    """
    ended, state = _signalled(), Health()
    make_room(len(WATCHED) * max(1, len(settings.namespaces)))
    async with (
        connect() as api,
        routers.session() as client,
        served(state, settings.host, settings.liveness_port),
    ):
        while not ended.done():
            try:
                await _work(api, partial(routers.fetch, client), settings, state, ended)
            except LeaseLostError as error:
                logger.warning("%s; waits for it again", error)
                state.waits(str(error))
            except (ApiError, ApiUnavailableError) as error:
                # one that has just started refuses what it will allow
                logger.warning("%s; again in %.0f s", error, _AGAIN_SECONDS)
                state.waits(str(error))
                await asyncio.wait({ended}, timeout=_AGAIN_SECONDS)


async def _work(
    api: Api,
    fetch: routers.Fetch,
    settings: Settings,
    state: Health,
    ended: asyncio.Future[None],
) -> None:
    """Work until SIGTERM, or until the Lease is lost."""
    await check_resources(api)
    tokens = await load(api, settings.key_namespace, settings.key)
    metrics = Metrics()
    program = assembled(api, fetch, tokens, settings, metrics)
    manager, lease = program.manager, program.lease

    def not_ready() -> str:
        why = lease.not_ready() or manager.not_ready()
        metrics.ready.set(not why)
        return why

    state.works(manager.stuck, not_ready)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(program.polls.close)
        stack.push_async_callback(lease.release)
        stack.push_async_callback(program.served.release)
        stack.enter_context(_metrics_server(settings, metrics))
        working = await stack.enter_async_context(_running(manager.run()))
        holding = await stack.enter_async_context(_running(lease.run()))
        check = partial(check_resources, api)
        await stack.enter_async_context(watched(settings, manager, program.streams.watches, check))
        await asyncio.wait({working, holding, ended}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()  # before the watches end, which takes a moment
        if holding.done():
            await holding


class Program(NamedTuple):
    """What works in the process of an operator, beside its watches."""

    manager: Manager
    lease: Lease
    served: Served
    streams: Streams
    polls: Polls


def assembled(
    api: Api,
    fetch: routers.Fetch,
    tokens: Tokens,
    settings: Settings,
    metrics: Metrics,
    *,
    clock: Clock = utc_now,
    monotonic: Callable[[], float] = time.monotonic,
) -> Program:
    """Put an operator together.

    Parameters
    ----------
    fetch : callable
        Reaches a router.
    tokens : Tokens
        Of their admin ports.
    """
    clock = SteadyClock(clock, monotonic)
    cache = Cache()
    streams = Streams(api, cache, settings.namespaces)
    applier = Applier(api, cache, metrics, monotonic)
    recorder = Recorder(applier)
    lease = Lease(api, settings, clock, monotonic, is_ready=lambda: not streams.blind)
    metrics.watch_lease(lease.held.is_set)
    due, centroids_due = WorkQueue(monotonic), WorkQueue(monotonic, CENTROIDS_REST_SECONDS)

    def wake(namespace: str) -> None:
        for name in cache.names(contract.KIND_DEPLOYMENT, namespace):
            due.wake((namespace, name))
            centroids_due.wake((namespace, name))

    served = Served(
        api,
        settings.release,
        clock,
        monotonic,
        wanted=partial(cache.namespaces, contract.KIND_DEPLOYMENT),
        wake=wake,
    )
    metrics.watch_conditions(lambda: _judged(cache, served.elsewhere) if lease.held.is_set() else ())
    common = Common(
        cache=cache,
        streams=streams,
        served=served,
        cluster=Cluster(api, cache, tokens, monotonic),
        applier=applier,
        recorder=recorder,
        reporter=Reporter(cache, recorder, clock),
        metrics=metrics,
        clock=clock,
    )
    outside = Outside(settings.lease_namespace, dict(settings.monitoring))
    secrets = AdminSecrets(applier, tokens)
    children = Children(
        applier, Images(settings.image), secrets, outside,
        maker=build.identity(settings.image), monotonic=monotonic,
    )  # fmt: skip
    polls = Polls(fetch, centroids_due.wake, clock, Authorities(api, monotonic))
    locality = Locality(
        api=api,
        polls=polls,
        applier=applier,
        recorder=recorder,
        metrics=metrics,
        image=settings.image,
        monotonic=monotonic,
    )
    poll_seconds = min(POLL_SECONDS, settings.resync_seconds)
    centroids = Centroids(common, locality, polls, due.wake, poll_seconds=poll_seconds, secrets=secrets)
    workloads = Workloads(common, api, children, centroids.wanted)
    controllers = [
        Controller(name, reconcile, kinds, own, queue=queue, metrics=metrics, monotonic=monotonic)
        for name, reconcile, kinds, own, queue in (
            ("workloads", workloads.reconcile, WORKLOAD_KINDS, WRITTEN_BY_WORKLOADS, due),
            ("centroids", centroids.reconcile, CENTROID_KINDS, WRITTEN_BESIDE_CENTROIDS, centroids_due),
        )
    ]
    manager = Manager(
        controllers,
        acts=lease.held,
        cache=cache,
        streams=streams,
        served=served,
        metrics=metrics,
        resync_seconds=settings.resync_seconds,
        monotonic=monotonic,
    )
    return Program(manager, lease, served, streams, polls)


def _judged(cache: Cache, elsewhere: Collection[str]) -> Iterator[tuple[str, Object]]:
    """Yield the resources with conditions, and their kinds; of several operators one is to tell of them, or alerts come twice."""
    for kind in (contract.KIND_DEPLOYMENT, contract.KIND_FIT):
        for live in cache.every(kind):
            if live["metadata"]["namespace"] not in elsewhere:
                yield kind, live


def _signalled() -> asyncio.Future[None]:
    """Return what is done once the process is to end."""
    loop = asyncio.get_running_loop()
    asked = loop.create_future()

    def ask(number: signal.Signals) -> None:
        logger.info("%s: ends", number.name)
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    return asked


async def check_resources(api: Api) -> None:
    """Refuse to start where the custom resources are not served: watching nothing would look like working.

    Raises
    ------
    OperatorError
        Naming what is missing and how to install it.
    """
    try:
        answer = await api.request("GET", f"/apis/{contract.API_VERSION}")
    except ApiError as error:
        if error.status != 404:
            raise
        answer = {"resources": []}
    served = {resource["name"] for resource in answer["resources"]}
    if missing := {contract.DEPLOYMENTS, contract.FITS, contract.SCALERS} - served:
        names = ", ".join(f"{plural}.{contract.GROUP}" for plural in sorted(missing))
        raise OperatorError(
            f"the API server does not serve {names}; install the CustomResourceDefinitions: kubectl apply -f crds/"
        )


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def _metrics_server(settings: Settings, metrics: Metrics) -> Iterator[None]:
    if not settings.metrics_port:
        yield
        return
    server, thread = start_http_server(settings.metrics_port, settings.host, metrics.registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Puts the operator together and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import kopf
from prometheus_client import start_http_server

from eldr import contract
from eldr.clients import UNBOUNDED
from eldr_operator import handlers
from eldr_operator.clock import utc_now
from eldr_operator.controller import Controller
from eldr_operator.errors import ApiError, OperatorError
from eldr_operator.kube.api import Api, connect
from eldr_operator.kube.cache import Cache
from eldr_operator.metrics import Metrics
from eldr_operator.reconcile import Reconciler
from eldr_operator.settings import Settings

logger = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Run the operator until SIGTERM; OperatorError if the custom resources are not served, or the API server cannot be reached."""
    metrics = Metrics()
    async with connect() as api, httpx.AsyncClient(trust_env=False, limits=UNBOUNDED) as http:
        await check_resources(api)
        cache = Cache()
        reconciler = Reconciler(
            api=api, cache=cache, http=http, metrics=metrics, image=settings.image, clock=utc_now
        )
        controller = Controller(
            api=api,
            cache=cache,
            reconciler=reconciler,
            metrics=metrics,
            namespaces=settings.namespaces,
            resync_seconds=settings.resync_seconds,
        )
        with _metrics_server(settings, metrics):
            async with _running(controller) as working:
                watching = asyncio.create_task(_watch(settings, controller))
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching


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
    if missing := {contract.DEPLOYMENTS, contract.FITS} - served:
        names = ", ".join(f"{plural}.{contract.GROUP}" for plural in sorted(missing))
        raise OperatorError(
            f"the API server does not serve {names}; install the CustomResourceDefinitions: kubectl apply -f crds/"
        )


async def _watch(settings: Settings, controller: Controller) -> None:
    endpoint = f"http://{settings.host}:{settings.liveness_port}/healthz" if settings.liveness_port else None
    await kopf.operator(
        registry=handlers.registry(controller),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        liveness_endpoint=endpoint,
    )


@contextlib.asynccontextmanager
async def _running(controller: Controller) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(controller.run())
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

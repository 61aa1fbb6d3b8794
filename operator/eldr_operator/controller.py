"""Workers that reconcile what is woken, and the resync that wakes everything now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from eldr import contract
from eldr_operator.errors import ApiUnavailableError, OperatorError
from eldr_operator.kube.api import Api
from eldr_operator.kube.queue import Key, WorkQueue
from eldr_operator.metrics import Metrics
from eldr_operator.reconcile import Reconciler

logger = logging.getLogger(__name__)

WORKERS = 4
LONGEST_PASS_SECONDS = 120.0
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
_STALE_INTERVALS = 3


class Controller:
    """Runs reconciliations.

    Parameters
    ----------
    api : Api
    reconciler : Reconciler
    metrics : Metrics
    namespaces : collection of str
        Empty for all.
    resync_seconds : float
        Between two resyncs, which also undo changes that no watch reports.
    monotonic : callable
        Returns seconds.
    """

    def __init__(
        self,
        *,
        api: Api,
        reconciler: Reconciler,
        metrics: Metrics,
        namespaces: Collection[str],
        resync_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._reconciler = reconciler
        self._metrics = metrics
        self._namespaces = namespaces
        self._resync_seconds = resync_seconds
        self._monotonic = monotonic
        self._failures: dict[Key, int] = {}
        self._resynced = monotonic()
        self.queue = WorkQueue(monotonic)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync())
            for _ in range(WORKERS):
                group.create_task(self._work())

    def staleness(self) -> float:
        """Return how many seconds the resync is late; it is stuck, or the API server out of reach."""
        return self._monotonic() - self._resynced - _STALE_INTERVALS * self._resync_seconds

    async def _resync(self) -> None:
        while True:
            started = self._monotonic()
            try:
                for key in await self._keys():
                    self.queue.wake(key)
                self._resynced = self._monotonic()
            except OperatorError as error:
                logger.warning("resync: %s", error)
            await asyncio.sleep(max(0.0, started + self._resync_seconds - self._monotonic()))

    async def _keys(self) -> set[Key]:
        keys = set()
        for namespace in self._namespaces or (None,):
            for deployment in await self._api.list(contract.KIND_DEPLOYMENT, namespace, metadata_only=True):
                keys.add((deployment["metadata"]["namespace"], deployment["metadata"]["name"]))
            for fit in await self._api.list(contract.KIND_FIT, namespace):
                keys.add((fit["metadata"]["namespace"], fit["spec"]["deploymentRef"]["name"]))
        return keys

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._one(key)
            finally:
                self.queue.done(key)

    async def _one(self, key: Key) -> None:
        result = "success"
        try:
            with self._metrics.seconds.time():
                async with asyncio.timeout(LONGEST_PASS_SECONDS):
                    again = await self._reconciler.reconcile(*key)
            self._failures.pop(key, None)
        except Exception as error:  # a worker must outlive any one resource
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            again = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS)) - 1]
            result = "unavailable" if _is(error, (ApiUnavailableError, TimeoutError)) else "error"
            if _is(error, (OperatorError, TimeoutError)):
                logger.warning("%s/%s: %s; again in %.1f s", *key, _text(error), again)
            else:
                logger.exception("%s/%s: cannot be reconciled; again in %.1f s", *key, again)
        self._metrics.reconciles.labels(result).inc()
        if again is not None:
            self.queue.wake(key, again)


def _is(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is(each, kinds) for each in error.exceptions)
    return isinstance(error, kinds)


def _text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_text, error.exceptions))
    return str(error) or type(error).__name__

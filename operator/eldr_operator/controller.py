"""A controller: a queue of deployments, and workers that reconcile what is due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from eldr_operator.errors import ApiUnavailableError, ConflictError, OperatorError
from eldr_operator.kube.queue import Key, WorkQueue
from eldr_operator.metrics import Metrics

logger = logging.getLogger(__name__)

WORKERS = 4
LONGEST_PASS_SECONDS = 60.0
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
_CONFLICT_SECONDS = 0.2

Reconcile = Callable[[str, str], Awaitable[float | None]]
"""Brings a deployment one step closer to its spec; returns after how many seconds to look again, whatever else happens."""


class Controller:
    """Runs one kind of reconciliation.

    Parameters
    ----------
    name : str
        For logs and metrics.
    kinds : collection of str
        Of objects whose changes concern it.
    own : collection of str
        Those of them whose changes concern it only where others have made them: a pass knows what it writes.
    queue : WorkQueue
        Of deployments to look at.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        kinds: Collection[str],
        own: Collection[str] = (),
        *,
        queue: WorkQueue,
        metrics: Metrics,
        monotonic: Callable[[], float],
    ) -> None:
        self.name, self.kinds, self.own = name, kinds, own
        self.queue = queue
        self._reconcile = reconcile
        self._metrics = metrics
        self._monotonic = monotonic
        self._failures: dict[Key, int] = {}
        self._ended = monotonic()

    async def run(self) -> None:
        """Work until cancelled."""
        self._ended = self._monotonic()  # what waited until now waited for another operator
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    def idle_seconds(self) -> float:
        """Return for how long no pass has ended although one is due."""
        return min(self._monotonic() - self._ended, self.queue.longest_wait())

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._one(key)
            finally:
                self._ended = self._monotonic()
                self.queue.done(key)

    async def _one(self, key: Key) -> None:
        result = "success"
        try:
            with self._metrics.seconds.labels(self.name).time():
                async with asyncio.timeout(LONGEST_PASS_SECONDS):
                    again = await self._reconcile(*key)
            self._failures.pop(key, None)
        except ConflictError as error:
            # Usual: the watch is a moment behind, or another operator is about to end.
            logger.debug("%s of %s/%s: %s", self.name, *key, error)
            result, again = "conflict", _CONFLICT_SECONDS
        except Exception as error:  # a worker must outlive any one resource
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            again = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS)) - 1]
            result = "unavailable" if _is(error, (ApiUnavailableError, TimeoutError)) else "error"
            if _is(error, (OperatorError, TimeoutError)):
                logger.warning("%s of %s/%s: %s; again in %.1f s", self.name, *key, _text(error), again)
            else:
                logger.exception("%s of %s/%s cannot be reconciled; again in %.1f s", self.name, *key, again)
        self._metrics.reconciles.labels(self.name, result).inc()
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

"""Workers that reconcile what is woken, and the resync that wakes everything now and then."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from eldr import contract
from eldr_operator.errors import ApiUnavailableError, ConflictError, OperatorError
from eldr_operator.kube.api import Object
from eldr_operator.kube.cache import Cache, deployment_of
from eldr_operator.kube.queue import Key, WorkQueue
from eldr_operator.kube.streams import Streams
from eldr_operator.metrics import Metrics
from eldr_operator.reconcile import Reconciler

logger = logging.getLogger(__name__)

WORKERS = 4
LONGEST_PASS_SECONDS = 60.0
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
_CONFLICT_SECONDS = 0.2
_STUCK_SECONDS = 60.0
"""Beyond what the resync and a pass are given: only a fault of this process explains it."""
_IDLE_SECONDS = 60.0
"""Without the end of any pass although one is due."""
_LIST_EVERY = 10
"""Resyncs: watches tell what changes, a list what they missed."""
_LIST_AGAIN_SECONDS = (2.0, 5.0, 15.0)
"""While something cannot be read; the resync's interval after these."""


class Controller:
    """Runs reconciliations.

    Parameters
    ----------
    acts : asyncio.Event
        Until it is set the cache is filled, and nothing is reconciled.
    streams : Streams
        Listed here, into the cache.
    queue : WorkQueue
        Of deployments to look at.
    resync_seconds : float
        Between two passes over everything.
    """

    def __init__(
        self,
        *,
        acts: asyncio.Event,
        cache: Cache,
        streams: Streams,
        reconciler: Reconciler,
        metrics: Metrics,
        queue: WorkQueue,
        resync_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._acts = acts
        self._cache = cache
        self._streams = streams
        self._listed = asyncio.Event()
        self._reconciler = reconciler
        self._metrics = metrics
        metrics.watch_blind(lambda: streams.blind)
        self._resync_seconds = resync_seconds
        self._monotonic = monotonic
        self._failures: dict[Key, int] = {}
        self._resynced = self._ended = monotonic()
        self.queue = queue

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync())
            for _ in range(WORKERS):
                group.create_task(self._work())

    def stuck(self) -> str:
        """Return what has stopped that only a new process starts again; empty while all goes on.

        An API server that is away, or a resource that cannot be read, is none of it: a restart would change nothing.
        """
        late = self._monotonic() - self._resynced - self._resync_seconds
        if late > _STUCK_SECONDS:
            return f"no resync for {late:.0f} s beyond its interval"
        if (longest := self.queue.longest_busy()) > LONGEST_PASS_SECONDS + _STUCK_SECONDS:
            return f"a pass does not end after {longest:.0f} s"
        return ""

    def not_ready(self) -> str:
        """Return why resources that should be served are not; empty if all are, idle ones included."""
        found = [f"{stream}: {why}" for stream, why in sorted(self._streams.blind.items(), key=str)]
        idle = min(self._monotonic() - self._ended, self.queue.longest_wait())
        if self._acts.is_set() and idle > _IDLE_SECONDS:
            found.append(f"no pass has ended for {idle:.0f} s, though one is due")
        return "\n".join(found)

    def changed(self, kind: str, live: Object, *, is_gone: bool) -> None:
        """Take a change that a watch has told, and wake the deployment that it concerns."""
        if is_gone:
            self._cache.remove(kind, live)
        else:
            self._cache.put(kind, live)
        if (name := _deployment(kind, live)) is not None:
            self.queue.wake((live["metadata"]["namespace"], name))

    async def _resync(self) -> None:
        again = iter(_LIST_AGAIN_SECONDS)
        for turn in itertools.count():
            started = self._monotonic()
            await self._streams.list(everything=turn % _LIST_EVERY == 0)
            self._listed.set()
            for key in self._keys():
                self.queue.wake(key)
            self._resynced = self._monotonic()
            pause = self._resync_seconds
            if self._streams.blind:
                pause = min(pause, next(again, pause))
            else:
                again = iter(_LIST_AGAIN_SECONDS)
            await asyncio.sleep(max(0.0, started + pause - self._monotonic()))

    def _keys(self) -> set[Key]:
        return {
            (live["metadata"]["namespace"], name)
            for kind in (contract.KIND_DEPLOYMENT, contract.KIND_FIT)
            for live in self._cache.every(kind)
            if (name := _deployment(kind, live)) is not None
        }

    async def _work(self) -> None:
        await self._listed.wait()
        await self._acts.wait()
        self._ended = self._monotonic()  # what waited until now waited for another operator
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
            with self._metrics.seconds.time():
                async with asyncio.timeout(LONGEST_PASS_SECONDS):
                    again = await self._reconciler.reconcile(*key)
            self._failures.pop(key, None)
        except ConflictError as error:
            # Usual: the watch is a moment behind, or another operator is about to end.
            logger.debug("%s/%s: %s", *key, error)
            result, again = "conflict", _CONFLICT_SECONDS
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


def _deployment(kind: str, live: Object) -> str | None:
    if kind == contract.KIND_DEPLOYMENT:
        return str(live["metadata"]["name"])
    if kind == contract.KIND_FIT:
        return str(live["spec"]["deploymentRef"]["name"])
    return deployment_of(live)


def _is(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is(each, kinds) for each in error.exceptions)
    return isinstance(error, kinds)


def _text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_text, error.exceptions))
    return str(error) or type(error).__name__

"""Requests that wait for room, in the order of their arrival.

Those whose prefill result found every engine full come first, and look again as soon as there is room. All others wait before anything is
spent on them; each gets its place reserved in the step that looks for it. No request overtakes: one free place is enough for any request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from eldr_router.engines.registry import Admission, Registry
from eldr_router.http.errors import RouterError
from eldr_router.telemetry.metrics import Metrics


class Waiter(Protocol):
    """A request that waits."""

    def admitted(self, admission: Admission) -> None:
        """Go on: there is room."""

    def turned_away(self, error: RouterError) -> None:
        """Answer with an error: there was none in time."""


class Result(Protocol):
    """A prefill result that waits."""

    def retry_placement(self) -> None:
        """Go on: there may be room."""


class _Entry(NamedTuple):
    sequences: int
    since: float
    timer: asyncio.TimerHandle


class Queue:
    """Admits requests at once, later, or not at all.

    Parameters
    ----------
    loop : AbstractEventLoop
    registry : Registry
    metrics : Metrics
    limit : callable
        Returns ``max_in_flight``.
    bounds : callable
        Returns how many requests may wait, 0: none does, and how many seconds one that comes now may.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: Registry,
        metrics: Metrics,
        limit: Callable[[], int],
        bounds: Callable[[], tuple[int, float]],
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._metrics = metrics
        self._limit = limit
        self._bounds = bounds
        self._is_closed = False
        # ordered: the first of a plain dict is slow to find after many have left
        self._entries: OrderedDict[Waiter, _Entry] = OrderedDict()
        self._results: OrderedDict[Result, None] = OrderedDict()
        self._is_due = False
        metrics.waiting.set_function(lambda: len(self._entries))
        registry.on_capacity_freed = self.wake

    def admit(self, waiter: Waiter, sequences: int) -> Admission | None:
        """Reserve room, or let the request wait and return None.

        RouterError as of :meth:`Registry.admit`.
        """
        limit, full = self._limit(), None
        self._dispatch()
        if not self._entries:
            try:
                return self._registry.admit(limit, sequences)
            except RouterError as error:
                if error.status != 429:
                    self._metrics.rejected(error.code)
                    raise
                full = error
        most, seconds = self._bounds()
        reason = "queue_full" if most and self._entries else "full"
        if self._is_closed or len(self._entries) >= most:
            self._metrics.rejected(reason)
            raise full or self._registry.full_error(limit)
        timer = self._loop.call_later(seconds, self._expire, waiter)
        self._entries[waiter] = _Entry(sequences, self._loop.time(), timer)
        return None

    def hold(self, result: Result) -> None:
        """Let a prefill result wait until it is dropped."""
        self._results[result] = None

    def drop(self, result: Result) -> None:
        """Let a prefill result go that may be waiting."""
        self._results.pop(result, None)

    def leave(self, waiter: Waiter) -> None:
        """Let a request go that may be waiting."""
        entry = self._entries.pop(waiter, None)
        if entry is not None:
            entry.timer.cancel()
            self._metrics.wait(self._loop.time() - entry.since)

    def wake(self) -> None:
        """Look for room soon: there may be some."""
        if (self._entries or self._results) and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._dispatch)

    def close(self) -> None:
        """Turn away all that wait: the router ends."""
        self._is_closed = True
        for waiter in tuple(self._entries):
            self._turn_away(
                waiter, "draining", RouterError(503, "this router ends; retry", "draining", retry_after=1)
            )

    def _dispatch(self) -> None:
        self._is_due = False
        for result in tuple(self._results):
            if not self._registry.has_free_slot(self._limit()):
                return
            result.retry_placement()
        while self._entries:
            waiter, entry = next(iter(self._entries.items()))
            admission = self._registry.reserve(self._limit(), entry.sequences)
            if admission is None:
                return
            self.leave(waiter)
            waiter.admitted(admission)

    def _expire(self, waiter: Waiter) -> None:
        try:
            admission = self._registry.admit(self._limit(), self._entries[waiter].sequences)
        except RouterError as error:
            self._turn_away(waiter, "deadline", error)
            return
        self.leave(waiter)
        waiter.admitted(admission)

    def _turn_away(self, waiter: Waiter, reason: str, error: RouterError) -> None:
        self.leave(waiter)
        self._metrics.rejected(reason)
        waiter.turned_away(error)

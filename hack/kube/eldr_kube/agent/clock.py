"""Time as the API writes it, and deadlines that may move closer."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Collection
from typing import Any


def timestamp() -> str:
    """Return the current time in whole seconds."""
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_timestamp() -> str:
    """Return the current time in microseconds, as leases and events want it."""
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Deadline:
    """A moment of the running event loop's clock.

    Parameters
    ----------
    seconds : float
        From now.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._when = self._loop.time() + seconds
        self._moved = asyncio.Event()

    @property
    def left(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._when - self._loop.time())

    def hasten(self, seconds: float) -> None:
        """Move to ``seconds`` from now if that is earlier."""
        self._when = min(self._when, self._loop.time() + seconds)
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait(self, tasks: Collection[asyncio.Future[Any]]) -> None:
        """Wait until one of the tasks is done, or until the deadline."""
        while self.left > 0:
            moved = asyncio.ensure_future(self._moved.wait())
            try:
                await asyncio.wait([*tasks, moved], timeout=self.left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
            if any(task.done() for task in tasks):
                return

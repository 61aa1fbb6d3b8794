"""A work queue: each key at most once in work, woken again when it must."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

Key = tuple[str, str]

REST_SECONDS = 1.0
"""Of a burst of changes one pass sees all."""


class WorkQueue:
    """Keys and when each is due.

    A key that is woken while it is in work becomes due again afterwards; waking it twice is waking it once.

    Parameters
    ----------
    time : callable
        Returns seconds, as the event loop's clock does.
    rest_seconds : float
        From the end of the work on a key until more is done for what can wait.
    """

    def __init__(self, time: Callable[[], float], rest_seconds: float = REST_SECONDS) -> None:
        self._time = time
        self._rest_seconds = rest_seconds
        self._due: dict[Key, float] = {}
        self._after_rest: dict[Key, float] = {}
        self._rested: dict[Key, float] = {}
        self._busy: dict[Key, float] = {}
        self._changed = asyncio.Event()
        self._taking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WorkQueue due={len(self._keys())} busy={len(self._busy)}>"

    def wake(self, key: Key, delay: float = 0.0) -> None:
        """Make a key due after ``delay`` seconds, unless it is due earlier."""
        due = self._time() + delay
        self._due[key] = min(due, self._due.get(key, due))
        self._changed.set()

    def wake_rested(self, key: Key) -> None:
        """Make a key due now, or when it has rested."""
        self._after_rest.setdefault(key, self._time())
        self._changed.set()

    async def take(self) -> Key:
        """Wait for a key that is due and not in work, and return it; :meth:`done` gives it back.

        Keys are taken one at a time, with a turn of the event loop before each: passes that await nothing block it no longer than one of them.
        """
        async with self._taking:
            await asyncio.sleep(0)
            while True:
                self._changed.clear()
                now = self._time()
                waiting = [(self._due_at(key), key) for key in self._keys() - self._busy.keys()]
                due, key = min(waiting, default=(None, ("", "")))
                if due is not None and due <= now:
                    self._due.pop(key, None)
                    self._after_rest.pop(key, None)
                    self._busy[key] = now
                    return key
                with contextlib.suppress(TimeoutError):
                    # not wait_for: before Python 3.12 it takes a change that comes with a cancellation for the end of the wait
                    async with asyncio.timeout(None if due is None else due - now):
                        await self._changed.wait()

    def done(self, key: Key) -> None:
        """Give a key back after work."""
        now = self._time()
        self._busy.pop(key, None)
        self._rested = {one: at for one, at in self._rested.items() if at > now}
        self._rested[key] = now + self._rest_seconds
        self._changed.set()

    def longest_busy(self) -> float:
        """Return for how many seconds the oldest key in work has been."""
        return max((self._time() - since for since in self._busy.values()), default=0.0)

    def longest_wait(self) -> float:
        """Return for how many seconds a key has been due and not taken."""
        waiting = self._keys() - self._busy.keys()
        return max((self._time() - self._due_at(key) for key in waiting), default=0.0)

    def _keys(self) -> set[Key]:
        return self._due.keys() | self._after_rest.keys()

    def _due_at(self, key: Key) -> float:
        rested = max(self._after_rest.get(key, math.inf), self._rested.get(key, 0.0))
        return min(self._due.get(key, math.inf), rested)

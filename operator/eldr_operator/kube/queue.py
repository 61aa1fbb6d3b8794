"""A work queue: each key at most once in work, woken again when it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Key = tuple[str, str]


class WorkQueue:
    """Keys and when each is due.

    A key that is woken while it is in work becomes due again afterwards; waking it twice is waking it once.

    Parameters
    ----------
    time : callable
        Returns seconds, as the event loop's clock does.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._due: dict[Key, float] = {}
        self._busy: dict[Key, float] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WorkQueue due={len(self._due)} busy={len(self._busy)}>"

    def wake(self, key: Key, delay: float = 0.0) -> None:
        """Make a key due after ``delay`` seconds, unless it is due earlier."""
        due = self._time() + delay
        self._due[key] = min(due, self._due.get(key, due))
        self._changed.set()

    async def take(self) -> Key:
        """Wait for a key that is due and not in work, and return it; :meth:`done` gives it back."""
        while True:
            self._changed.clear()
            now = self._time()
            waiting = [(due, key) for key, due in self._due.items() if key not in self._busy]
            due, key = min(waiting, default=(None, ("", "")))
            if due is not None and due <= now:
                del self._due[key]
                self._busy[key] = now
                return key
            try:
                await asyncio.wait_for(self._changed.wait(), None if due is None else due - now)
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """Give a key back after work."""
        self._busy.pop(key, None)
        self._changed.set()

    def longest_busy(self) -> float:
        """Return for how many seconds the oldest key in work has been."""
        return max((self._time() - since for since in self._busy.values()), default=0.0)

    def longest_wait(self) -> float:
        """Return for how many seconds a key has been due and not taken."""
        return max(
            (self._time() - due for key, due in self._due.items() if key not in self._busy), default=0.0
        )

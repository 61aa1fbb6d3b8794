"""When the next request comes."""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np


class Arrivals(Protocol):
    """Decides when requests begin."""

    def restart(self) -> None:
        """Begin the same pattern anew."""

    async def next(self, stop: asyncio.Event) -> bool:
        """Wait for the next arrival; False if told to stop meanwhile."""

    def done(self) -> None:
        """Note that a request has ended."""


class Poisson:
    """Open loop: requests come at random, however the pool fares.

    Parameters
    ----------
    rate : float
        Mean arrivals per second.
    """

    def __init__(self, rate: float, seed: int = 1) -> None:
        self._rate = rate
        self._seed = seed
        self._due: float | None = None
        self.restart()

    def restart(self) -> None:
        """Begin the same gaps anew.

        Phases then differ in what arrives and where it is placed, not in how bursty chance made them.
        """
        self._gaps = np.random.default_rng(self._seed)

    async def next(self, stop: asyncio.Event) -> bool:
        """Wait for the next arrival; False if told to stop meanwhile."""
        now = asyncio.get_running_loop().time()
        self._due = (now if self._due is None else self._due) + self._gaps.exponential(1.0 / self._rate)
        return not await _set_within(stop, self._due - now)

    def done(self) -> None:
        """Nothing depends on it."""


class ClosedLoop:
    """As many requests at a time, always: what a pool shows then does not depend on how fast the machine is."""

    def __init__(self, in_flight: int) -> None:
        self._free = asyncio.Semaphore(in_flight)

    def restart(self) -> None:
        """Nothing depends on it."""

    async def next(self, stop: asyncio.Event) -> bool:
        """Wait until a request may begin; False if told to stop meanwhile."""
        free, stopped = asyncio.ensure_future(self._free.acquire()), asyncio.ensure_future(stop.wait())
        await asyncio.wait((free, stopped), return_when=asyncio.FIRST_COMPLETED)
        for waiting in (free, stopped):
            waiting.cancel()
        await asyncio.gather(free, stopped, return_exceptions=True)
        return not stop.is_set()

    def done(self) -> None:
        """Let the next one begin."""
        self._free.release()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event for so long and tell whether it is set."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return event.is_set()
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True

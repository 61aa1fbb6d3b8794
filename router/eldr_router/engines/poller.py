"""Background requests to engines, each in a task of its own.

So a slow engine delays no other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.registry import Registry
from eldr_router.net.pool import Pool


class Poller:
    """Asks engines in turn, each one question at a time.

    Parameters
    ----------
    registry : Registry
    pool : Pool
    clock : callable
        Monotonic seconds.
    """

    _TICK: float
    """Seconds between two turns."""

    def __init__(self, registry: Registry, pool: Pool, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._pool = pool
        self._clock = clock
        self._due: dict[Endpoint, float] = {}
        self._running: dict[Endpoint, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Ask for ever."""
        try:
            while True:
                self._turn()
                await asyncio.sleep(self._TICK)
        finally:
            for task in tuple(self._running.values()):
                task.cancel()

    def ask(self, endpoint: Endpoint) -> None:
        """Ask an engine now, unless it is being asked."""
        if endpoint not in self._running:
            task = self._pool.loop.create_task(self._ask(endpoint))
            self._running[endpoint] = task
            task.add_done_callback(lambda _: self._running.pop(endpoint, None))

    def _known(self) -> list[Endpoint]:
        return self._registry.endpoints(ROLE_PREFILL) + self._registry.endpoints(ROLE_DECODE)

    def _turn(self) -> None:
        """Ask those whose turn it is."""
        raise NotImplementedError

    async def _ask(self, endpoint: Endpoint) -> None:
        raise NotImplementedError

"""What all requests of a process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from eldr_router.engines.model_names import ModelNames
from eldr_router.engines.probes import Probes
from eldr_router.engines.registry import Registry
from eldr_router.flow.queue import Queue
from eldr_router.net.pool import Pool
from eldr_router.placement.affinity import PrefixAffinity
from eldr_router.placement.placer import Placer
from eldr_router.placement.table import EMPTY, Table
from eldr_router.settings import Settings
from eldr_router.telemetry.request import Telemetry


class Waiting(Protocol):
    """A request whose engine may not say anything before a lease is over."""

    def tick(self, now: float) -> None:
        """Take the time."""


@dataclass(slots=True)
class Services:
    """What all requests share; ``table`` is replaced as a whole."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    registry: Registry
    pool: Pool
    placer: Placer
    telemetry: Telemetry
    probes: Probes
    affinity: PrefixAffinity = field(default_factory=PrefixAffinity)
    model_names: ModelNames = field(default_factory=ModelNames)
    clock: Callable[[], float] = time.monotonic  # the loop's own clock ticks in milliseconds
    table: Table = EMPTY
    waiting: set[Waiting] = field(default_factory=set)
    queue: Queue = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.queue = Queue(
            self.loop,
            self.registry,
            self.telemetry.metrics,
            lambda: self.table.max_in_flight,
            self._waiting_bounds,
        )

    def _waiting_bounds(self) -> tuple[int, float]:
        """Return how many requests may wait for room, and how long: as the table says, else the options."""
        document, settings = self.table.document, self.settings
        return (
            settings.max_waiting if document.max_waiting is None else document.max_waiting,
            settings.max_wait_seconds if document.max_wait_seconds is None else document.max_wait_seconds,
        )

    def use(self, table: Table) -> None:
        """Route by a table from now on; requests that wait may have room."""
        self.table = table
        self.queue.wake()

    def tick(self) -> None:
        """Take the time for requests that wait, several times a second."""
        self.queue.wake()
        now = self.clock()
        for waiting in tuple(self.waiting):
            waiting.tick(now)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the traffic."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel what runs beside the traffic."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""What all requests of a process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from eldr_router.metrics import Metrics
from eldr_router.placement import Placer
from eldr_router.registry import Registry
from eldr_router.routing import EMPTY, Table
from eldr_router.settings import Settings
from eldr_router.telemetry import Telemetry
from eldr_router.upstream import Pool


@dataclass(slots=True)
class Services:
    """What all requests share; ``table`` is replaced as a whole."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    registry: Registry
    pool: Pool
    placer: Placer
    metrics: Metrics
    telemetry: Telemetry
    router: str
    clock: Callable[[], float] = time.monotonic  # the loop's own clock ticks in milliseconds
    table: Table = EMPTY
    sequence: int = 0

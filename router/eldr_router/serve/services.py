"""What all requests of a process share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from eldr_router.net.pool import Pool
from eldr_router.ops.joiner import Joiner
from eldr_router.ops.metrics import Metrics
from eldr_router.plan.placement import Placer
from eldr_router.plan.table import EMPTY, Table
from eldr_router.settings import Settings
from eldr_router.state.registry import Registry


@dataclass(slots=True)
class Services:
    """What all requests share; ``table`` is replaced as a whole."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    registry: Registry
    pool: Pool
    placer: Placer
    metrics: Metrics
    joiner: Joiner
    router: str
    clock: Callable[[], float] = time.monotonic  # the loop's own clock ticks in milliseconds
    table: Table = EMPTY
    sequence: int = 0

"""Asks engines for their load, where their answers do not say it often enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eldr.contract import PATH_LOAD, ROLE_DECODE, ROLE_PREFILL
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.net.pool import Pool
from eldr_router.plan.load import read_load
from eldr_router.state.endpoint import Endpoint
from eldr_router.state.registry import Registry

_TICK, _OLD = 0.05, 0.15
"""While there are requests no report is older than both together, and an answer's time. With many routers each asks less often:"""
_SPACING = 0.005
"""All of them together ask an engine once in so many seconds."""
_IDLE_PERIOD = 0.5
"""Seconds between two questions without requests, to an engine that reports nothing, and after a failure."""
_PATIENCE = 2.0


class Loads:
    """Keeps the reports of all engines fresh; a slow engine delays no other one."""

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
                await asyncio.sleep(_TICK)
        finally:
            for task in tuple(self._running.values()):
                task.cancel()

    def _turn(self) -> None:
        now, spacing = self._clock(), _SPACING * (1 + len(self._registry.peers))
        period = max(_OLD if self._registry.is_busy else _IDLE_PERIOD, spacing)
        known = self._registry.endpoints(ROLE_DECODE) + self._registry.endpoints(ROLE_PREFILL)
        self._due = {endpoint: self._due.get(endpoint, 0.0) for endpoint in known}
        for endpoint, due in self._due.items():
            is_due = due <= now and now - endpoint.heard >= period
            if is_due and endpoint not in self._running and endpoint.health.probed_well:
                task = self._running[endpoint] = self._pool.loop.create_task(self._ask(endpoint))
                task.add_done_callback(lambda _, e=endpoint: self._running.pop(e, None))  # type: ignore[misc]

    async def _ask(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await fetch(self._pool, endpoint.address, PATH_LOAD, patience=_PATIENCE)
        except (ConnectError, BrokenError, TimeoutError) as error:
            if getattr(error, "cause", None) != "stale":  # a pooled connection may have ended
                self._due[endpoint] = self._clock() + _IDLE_PERIOD
            if isinstance(error, ConnectError) and not error.own:  # whatever ran there is over
                endpoint.others, endpoint.is_full = 0, False
            return
        load = read_load(answer.status, answer.body)
        if load is None:
            self._due[endpoint] = self._clock() + _IDLE_PERIOD
        endpoint.report(load, self._clock())

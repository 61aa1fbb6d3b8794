"""Asks engines for their load where answers are too rare."""

from __future__ import annotations

import asyncio

from eldr.contract import PATH_LOAD
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.load import read_load
from eldr_router.engines.poller import Poller
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError

_TICK, _OLD = 0.05, 0.15
"""While there are requests no report is older than both together, and an answer's time. With many routers each asks less often:"""
_SPACING = 0.005
"""All of them together ask an engine once in so many seconds."""
_IDLE_PERIOD = 0.5
"""Seconds between two questions without requests, to an engine that reports nothing, and after a failure."""
_PATIENCE = 2.0


class LoadPoller(Poller):
    """Keeps the reports of all engines fresh."""

    _TICK = _TICK

    def _turn(self) -> None:
        now, spacing = self._clock(), _SPACING * (1 + len(self._registry.peers))
        period = max(_OLD if self._registry.has_recent_traffic else _IDLE_PERIOD, spacing)
        self._due = {endpoint: self._due.get(endpoint, 0.0) for endpoint in self._known()}
        for endpoint, due in self._due.items():
            is_due = due <= now and now - endpoint.reported_at >= period
            if is_due and endpoint.health.probed_well:
                self.ask(endpoint)

    async def _ask(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await fetch(self._pool, endpoint.address, PATH_LOAD, patience=_PATIENCE)
        except (ConnectError, BrokenError, TimeoutError) as error:
            if getattr(error, "cause", None) != "stale":  # a pooled connection may have ended
                self._due[endpoint] = self._clock() + _IDLE_PERIOD
            if isinstance(error, ConnectError) and not error.own:  # whatever ran there is over
                endpoint.in_flight_elsewhere, endpoint.is_full = 0, False
            return
        load = read_load(answer.status, answer.body)
        if load is None:
            self._due[endpoint] = self._clock() + _IDLE_PERIOD
        endpoint.report(load, self._clock())

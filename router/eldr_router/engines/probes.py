"""Probes of engines: all now and then, suspects at once and often.

A process that accepts connections and answers no request, or is stopped, looks healthy to whoever only counts refused
connections, and least loaded to every balancer.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from eldr.contract import PATH_HEALTH
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.poller import Poller
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError

log = logging.getLogger(__name__)

_PERIOD = 5.0
_SUSPICIOUS_PERIOD = 1.0
_PATIENCE = 2.0


class Probes(Poller):
    """Probes engines by ``GET /health``."""

    _TICK = _SUSPICIOUS_PERIOD / 4

    def _turn(self) -> None:
        now = self._clock()
        known = self._known()
        late = {endpoint: now + _PERIOD * i / len(known) for i, endpoint in enumerate(known)}
        self._due = {endpoint: self._due.get(endpoint, late[endpoint]) for endpoint in known}
        for endpoint, due in self._due.items():
            if due <= now:
                self._due[endpoint] = now + (_PERIOD if endpoint.health.is_good(now) else _SUSPICIOUS_PERIOD)
                self.ask(endpoint)

    async def _ask(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                # An engine that is shutting down may still answer on connections that it has accepted before.
                answer = await fetch(
                    self._pool, endpoint.address, PATH_HEALTH, patience=_PATIENCE, fresh=True
                )
        except (ConnectError, BrokenError, TimeoutError) as error:
            if isinstance(error, ConnectError) and error.own:
                return  # nothing was asked
            self._take(endpoint, str(error) or f"no answer in {_PATIENCE:g} s")
            return
        # whoever answers lives, unless it says itself that it is not well
        bad = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        self._take(endpoint, f"{PATH_HEALTH} answered {answer.status}" if bad else None)

    def _take(self, endpoint: Endpoint, problem: str | None) -> None:
        was = endpoint.health.probed_well
        endpoint.health.probed(well=problem is None)
        if problem is not None and was:
            log.warning("engine %s gets no requests: %s", endpoint.name, problem)
            self._due[endpoint] = self._clock() + _SUSPICIOUS_PERIOD
        elif problem is None and not was:
            log.info("engine %s is healthy again", endpoint.name)

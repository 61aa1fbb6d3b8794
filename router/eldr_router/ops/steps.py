"""Asks decode engines now and then how long their steps take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eldr.contract import PATH_METRICS, ROLE_DECODE
from eldr.core.step_law import learn
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.net.pool import Pool
from eldr_router.plan.exposition import read_sums
from eldr_router.state.laws import Laws, default_law
from eldr_router.state.registry import Endpoint, Registry

_PERIOD = 10.0
_UNSUPPORTED_PERIOD = 60.0
_PATIENCE = 5.0
_MOST_BYTES = 16 << 20


class Steps:
    """Reads the metrics of decode engines, one after the other, so that their own servers are asked little.

    Parameters
    ----------
    registry : Registry
    pool : Pool
    laws : Laws
    n_experts : callable
        Experts per layer of the model, or None while nothing is known.
    """

    def __init__(
        self, registry: Registry, pool: Pool, laws: Laws, n_experts: Callable[[], int | None]
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._laws = laws
        self._n_experts = n_experts
        self._due: dict[Endpoint, float] = {}
        self._learn_at = 0.0

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await self.step()
            known = len(self._registry.endpoints(ROLE_DECODE))
            await asyncio.sleep(_PERIOD / max(1, known))

    async def step(self) -> None:
        """Ask the engine whose turn it is, if any, and learn."""
        known = self._registry.endpoints(ROLE_DECODE)
        self._due = {endpoint: self._due.get(endpoint, 0.0) for endpoint in known}
        self._laws.retain([endpoint.name for endpoint in known])
        now = self._pool.loop.time()
        endpoint = min(known, key=self._due.__getitem__, default=None)
        if endpoint is not None and self._due[endpoint] <= now:
            tells = await self._ask(endpoint)
            self._due[endpoint] = now + (_PERIOD if tells else _UNSUPPORTED_PERIOD)
        n_experts = self._n_experts()
        if n_experts is not None and self._learn_at <= now:
            self._learn_at = now + _PERIOD
            # beside the event loop: with many engines it takes as long as some tokens
            learned = await asyncio.to_thread(learn, self._laws.known(), default_law(n_experts))
            self._laws.take(learned, n_experts)

    async def _ask(self, endpoint: Endpoint) -> bool:
        """Return whether an engine tells of its steps; one that cannot be asked now may yet."""
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await fetch(
                    self._pool, endpoint.address, PATH_METRICS, patience=_PATIENCE, limit=_MOST_BYTES
                )
        except (ConnectError, BrokenError, TimeoutError):
            return True
        sums = read_sums(answer.body) if answer.status == 200 else None
        if sums is None:
            return False
        self._laws.heard(endpoint.name, sums, self._pool.loop.time())
        return True

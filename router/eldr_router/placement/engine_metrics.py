"""Reads metrics of decode engines: step times, KV caches, answers."""

from __future__ import annotations

import asyncio

from eldr.contract import PATH_METRICS, ROLE_DECODE
from eldr.core.step_time_fit import learn
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.exposition import (
    read_answers,
    read_cache,
    read_counting,
    read_steps,
    read_sums,
    read_untested,
)
from eldr_router.engines.registry import Registry
from eldr_router.net.fetch import fetch
from eldr_router.net.outbound import BrokenError, ConnectError
from eldr_router.net.pool import Pool
from eldr_router.placement.locality import Locality
from eldr_router.placement.step_times import default_step_time

_PERIOD = 10.0
_UNSUPPORTED_PERIOD = 60.0
_NEW_PERIOD = 0.5
"""While there are engines that were never asked, at most: until then their KV caches and step times are unknown."""
_PATIENCE = 5.0
_MOST_BYTES = 16 << 20


class EngineMetricsPoller:
    """Reads the metrics of decode engines, one after the other."""

    def __init__(self, registry: Registry, pool: Pool, locality: Locality) -> None:
        self._registry = registry
        self._pool = pool
        self._locality = locality
        self._due: dict[Endpoint, float] = {}
        self._learn_at = 0.0

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await self.step()
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        pause = _PERIOD / max(1, len(self._due))
        is_new = not self._due or not all(self._due.values())
        return min(_NEW_PERIOD, pause / 2) if is_new else pause

    async def step(self) -> None:
        """Ask the engine whose turn it is, if any, and learn."""
        known = self._registry.endpoints(ROLE_DECODE)
        self._due = {endpoint: self._due.get(endpoint, 0.0) for endpoint in known}
        step_times, savings = self._locality.step_times, self._locality.savings
        names = [endpoint.name for endpoint in known]
        step_times.retain(names)
        savings.retain(names)
        self._registry.kv_room.retain(names)
        now = self._pool.loop.time()
        endpoint = min(known, key=self._due.__getitem__, default=None)
        if endpoint is not None and self._due[endpoint] <= now:
            # one that is not well would hold up the others
            reports = not endpoint.health.probed_well or await self._ask(endpoint)
            self._due[endpoint] = now + (_PERIOD if reports else _UNSUPPORTED_PERIOD)
        n_experts = self._locality.n_experts
        if n_experts is not None and self._learn_at <= now:
            self._learn_at = now + _PERIOD
            # beside the event loop: with many engines they take as long as some tokens
            learned = await asyncio.to_thread(learn, step_times.known(), default_step_time(n_experts))
            step_times.take(learned, n_experts)
            placement, saving = savings.placement, await asyncio.to_thread(savings.prepare(now))
            if savings.placement == placement:
                savings.latest = saving

    async def _ask(self, endpoint: Endpoint) -> bool:
        """Return whether an engine reports its steps; one that cannot be asked now may do so later."""
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await fetch(
                    self._pool, endpoint.address, PATH_METRICS, patience=_PATIENCE, limit=_MOST_BYTES
                )
        except (ConnectError, BrokenError, TimeoutError):
            return True
        now = self._pool.loop.time()
        if answer.status == 200:
            endpoint.untested = read_untested(answer.body)
            endpoint.counting = read_counting(answer.body)
            self._registry.observe(endpoint, read_cache(answer.body), read_answers(answer.body))
        sums = read_sums(answer.body) if answer.status == 200 else None
        if sums is None:
            return False
        self._locality.step_times.observe(endpoint.name, sums, now)
        if (steps := read_steps(answer.body, sums)) is not None:
            self._locality.savings.observe(endpoint.name, steps, now)
        return True

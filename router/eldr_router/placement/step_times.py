"""Step-time models of decode engines, learned from telemetry."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.core.step_time_fit import Learned, Window
from eldr_router.engines.exposition import Sums, window

_MOST_WINDOWS = 60
_KEPT_SECONDS = 300.0
_LEAST_STEPS = 10
_LEAST_WINDOWS = 6
"""Of all engines: below it the default is used."""


class StepTimes:
    """Reports of engines' steps, and the models that follow."""

    def __init__(self) -> None:
        self._sums: dict[str, Sums] = {}
        self._windows: dict[str, deque[tuple[float, Window]]] = {}
        self._observed = 0.0
        self._learned: Learned | None = None
        self._n_experts = 0
        self._token_cost = 0.0

    def observe(self, engine: str, sums: Sums, now: float) -> None:
        """Take an engine's totals."""
        before = self._sums.get(engine)
        if before is not None and any(new < old for new, old in zip(sums, before, strict=True)):
            self._windows.pop(engine, None)  # another process, perhaps on another accelerator
        elif before is not None:
            latest = window(before, sums, _LEAST_STEPS)
            if latest is None:
                return  # too few steps yet: they count the next time
            self._windows.setdefault(engine, deque(maxlen=_MOST_WINDOWS)).append((now, latest))
            self._observed = now
        self._sums[engine] = sums

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        for engine in self._sums.keys() - set(engines):
            del self._sums[engine]
            self._windows.pop(engine, None)

    def known(self) -> dict[str, list[Window]]:
        """Return what engines reported in the last minutes.

        An engine of which nothing is known any longer counts as any other: it gets requests, and may report that it is faster now.
        """
        since = self._observed - _KEPT_SECONDS
        return {
            engine: [each for at, each in windows if at >= since] for engine, windows in self._windows.items()
        }

    def take(self, learned: Learned, n_experts: int) -> None:
        """Take what was learned from :meth:`known`, if it was enough."""
        self._learned = learned if learned.windows >= _LEAST_WINDOWS else None
        self._n_experts = n_experts
        self._token_cost = self._cost_of_context()

    def of(self, engines: Sequence[str], n_experts: int) -> list[StepTime]:
        """Return engines' step-time models: learned, or the default."""
        learned = self._learned
        if learned is None or n_experts != self._n_experts:
            return [default_step_time(n_experts)] * len(engines)
        step_times, pool = learned.step_times, learned.pool
        return [step_times.get(engine, pool) for engine in engines]

    @property
    def learned(self) -> Learned | None:
        """What was learned; None until enough was reported."""
        return self._learned

    @property
    def token_cost(self) -> float:
        """Cost of a token of context, in sequences; 0 until it is known."""
        return self._token_cost

    def _cost_of_context(self) -> float:
        if self._learned is None or not (latest := self._latest()):
            return 0.0
        pool, (active, batch, _) = self._learned.pool, latest
        others = pool.per_expert * active + pool.per_request * batch
        return pool.per_token * batch / others if others > 0 else 0.0

    def _latest(self) -> tuple[float, float, float] | None:
        """Return active experts, requests and their context, means over the last report of each engine."""
        latest = [windows[-1][1] for windows in self._windows.values() if windows]
        if not latest:
            return None
        return (
            sum(each.active for each in latest) / len(latest),
            sum(each.batch for each in latest) / len(latest),
            sum(each.context for each in latest) / len(latest),
        )

    def expert_share(self) -> tuple[float, float] | None:
        """Return the share of a step that experts take, and its error."""
        learned = self._learned
        if learned is None or not (latest := self._latest()):
            return None
        active, batch, context = latest
        seconds = learned.pool.seconds(batch, active, context)
        if not active or not (seconds > 0 and math.isfinite(seconds)):
            return None  # engines that count no experts show nothing of what they cost
        return learned.pool.per_expert * active / seconds, learned.expert_error * active / seconds


@lru_cache(maxsize=16)
def default_step_time(n_experts: int) -> StepTime:
    """Return the step-time model of engines without reports.

    That of Qwen3-30B-A3B on an MI300X, by shares of experts.
    """
    return QWEN3_30B_MI300X.for_experts(n_experts)

"""The step-time laws of the decode engines, learned from their own telemetry."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache

from eldr.core.step_law import Learned, Window, learn
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr_router.plan.exposition import Sums, window

_MOST_WINDOWS = 60
_LEAST_STEPS = 10
_LEAST_WINDOWS = 6
"""Of all engines: below it the default is used."""


class Laws:
    """What engines tell of their steps, and the laws that follow from it."""

    def __init__(self) -> None:
        self._sums: dict[str, Sums] = {}
        self._windows: dict[str, deque[Window]] = {}
        self._learned: Learned | None = None
        self._n_experts = 0
        self._stale = False

    def heard(self, engine: str, sums: Sums) -> None:
        """Take an engine's totals."""
        before = self._sums.get(engine)
        if before is not None and sums.steps < before.steps:
            self._windows.pop(engine, None)  # another process, perhaps on another accelerator
        elif before is not None:
            found = window(before, sums, _LEAST_STEPS)
            if found is None:
                return  # too few steps yet: they count the next time
            self._windows.setdefault(engine, deque(maxlen=_MOST_WINDOWS)).append(found)
            self._stale = True
        self._sums[engine] = sums

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        for engine in self._sums.keys() - set(engines):
            del self._sums[engine]
            self._windows.pop(engine, None)

    def learn(self, n_experts: int) -> None:
        """Learn from what was heard since the last time, with the default of so many experts."""
        if not self._stale and n_experts == self._n_experts:
            return
        self._stale, self._n_experts = False, n_experts
        enough = sum(map(len, self._windows.values())) >= _LEAST_WINDOWS
        self._learned = learn(self._windows, default_law(n_experts)) if enough else None

    def of(self, engines: Sequence[str], n_experts: int) -> list[StepTime]:
        """Return engines' laws: learned, or the default."""
        learned = self._learned
        if learned is None or n_experts != self._n_experts:
            return [default_law(n_experts)] * len(engines)
        laws, pool = learned.laws, learned.pool
        return [laws.get(engine, pool) for engine in engines]

    @property
    def learned(self) -> Learned | None:
        """What was learned; None until enough was heard."""
        return self._learned

    def last(self, engine: str) -> Window | None:
        """Return the latest window of an engine."""
        windows = self._windows.get(engine)
        return windows[-1] if windows else None

    def expert_share(self) -> tuple[float, float] | None:
        """Return the share of a step's time that reading experts takes at the present load, and its standard error."""
        learned = self._learned
        latest = [windows[-1] for windows in self._windows.values() if windows]
        if learned is None or not latest:
            return None
        active = sum(found.active for found in latest) / len(latest)
        batch = sum(found.batch for found in latest) / len(latest)
        seconds = learned.pool.seconds(batch, active)
        if not (seconds > 0 and math.isfinite(seconds)):
            return None
        return learned.pool.per_expert * active / seconds, learned.expert_error * active / seconds


@lru_cache(maxsize=16)
def default_law(n_experts: int) -> StepTime:
    """Return the law of engines that have told nothing yet: a Qwen3-30B-A3B on an MI300X, by shares of experts."""
    return QWEN3_30B_MI300X.for_experts(n_experts)

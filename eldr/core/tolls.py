"""Tolls of centroids: they keep the prior's shares of requests even.

The fit shared requests out evenly. Tolls do so when traffic has changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import repeat
from operator import sub

from eldr.core.policy import Situation
from eldr.core.step_time import StepTime

STEP = 0.01
"""Of a cosine, per request: some hundred requests move a toll by what distinguishes kinds of requests."""


class Tolls:
    """What each engine's similarity is charged, to even out favours.

    Clusters of a fit hold equal shares of its requests: each centroid is the nearest of as many. Traffic changes, and some
    are nearest to most of it; similarity then crowds their engines. A toll rises with every request that favours its engine
    after tolls, and all of them fall in turn, so that favours are shared out evenly again. What a centroid says of all requests is
    thereby taken off; what it says of one against others stays.

    Notes
    -----
    One step of subgradient ascent per request on the dual of the fit's own problem, assignment under capacity: a toll is the
    price of an engine's share. The share of an engine that takes ``s`` times as long is ``1 / s**2`` of another's, for what
    is least in sum, ``B T(B)`` with ``T ~ s sqrt(B)``, asks for that.
    """

    def __init__(self) -> None:
        self._tolls: dict[int, float] = {}
        self._turn = 0  # of its own: turns of the pool count requests that settle nothing, in whatever rhythm
        self._step_times: tuple[StepTime, ...] = ()
        self._steps: list[float] = []

    def of(self, slots: Sequence[int]) -> list[float]:
        """Return the tolls of engines by slot; 0 for one never seen.

        Centroids belong to slots.
        """
        return list(map(self._tolls.get, slots, repeat(0.0)))

    def retain(self, slots: Collection[int]) -> None:
        """Forget the tolls of engines that are gone."""
        for slot in self._tolls.keys() - set(slots):
            del self._tolls[slot]

    def settle(self, situation: Situation) -> int | None:
        """Settle a placed request; return the engine that similarity favours.

        It is a position, after tolls.

        Without similarities, slots and tolls nothing happens, and no engine is favoured.
        """
        scores, slots, charged = situation.similarity, situation.slots, situation.tolls
        if scores is None or slots is None or charged is None:
            return None
        left = list(map(sub, scores, charged))
        places: Sequence[int] = range(len(left))
        if math.isnan(sum(left)):
            # who has no centroid has no part in this
            places = [at for at, score in enumerate(left) if not math.isnan(score)]
            if not places:
                return None
            left, slots = [left[at] for at in places], [slots[at] for at in places]
            steps = _steps([situation.step_times[at] for at in places])
        else:
            step_times = tuple(situation.step_times)
            if step_times != self._step_times:
                self._step_times, self._steps = step_times, _steps(step_times)
            steps = self._steps
        tolls = self._tolls
        best, due = left.index(max(left)), self._turn % len(slots)
        favourite = slots[best]
        self._turn += 1
        tolls[favourite] = tolls.get(favourite, 0.0) + STEP
        tolls[slots[due]] = tolls.get(slots[due], 0.0) - steps[due]
        return places[best]


def _steps(step_times: Sequence[StepTime]) -> list[float]:
    """Return by how much each engine's toll falls when it is its turn: ``STEP`` on average."""
    shares = [1.0] * len(step_times)
    if any(step_time is not step_times[0] for step_time in step_times):
        full = [step_time.seconds(0.0, step_time.n_experts) for step_time in step_times]
        if min(full) > 0.0 and math.isfinite(sum(full)):
            shares = [seconds**-2 for seconds in full]
    unit = STEP * len(shares) / sum(shares)
    return [unit * share for share in shares]

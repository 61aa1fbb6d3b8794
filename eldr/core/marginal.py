"""MarginalUnion: locality and load in one unit, seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_, sub

import numpy as np

from eldr.core.balancers import JSQ
from eldr.core.policy import Choice, Situation, bound, check_load, known_scores, least_loaded_of, within
from eldr.core.step_time import StepTime

_JSQ = JSQ()
MAX_LOAD = 3.0
_FADES = 4
"""Power of the share of experts in use with which growth is charged less for those there: see the notes."""
_PRIOR_FADES = 2
"""The same of the prior's weight."""
_SAME = 1e-4
"""Costs that differ by a smaller share differ by nothing."""


@dataclass(frozen=True, slots=True)
class MarginalUnion:
    """The engine on which a request adds least to predicted step time.

    With ``B`` sequences in flight, ``A`` active experts expected, ``dA`` more through the request's ``n`` sequences, and the
    step-time model ``T(B, A)``, an engine's cost is ``(B + n) T(B + n, A + dA) - B T(B, A)``: what the request's own steps take, and what it
    adds to those of everybody there. Where experts cost nothing, the fewest in flight win. A step-time model that knows what a token
    of context costs charges that of the request and of those there as well.

    Parameters
    ----------
    prior : float
        Weight of similarity to centroids, if there are any, as a share of a layer's experts: with 1, a cosine of 1 above the
        mean of all engines is worth as much as reading every expert, while few are in use. Tolls are taken off each
        similarity first; they keep centroids that are stale from crowding engines.
    max_load : float
        Only engines that would hold at most so many times the mean load are looked at. The policy itself stays
        below, also in a pool of fast and slow engines, unless its input is wrong.

    Notes
    -----
    Of ``dA`` those there are charged ``1 - (A / E)**4``, ``A / E`` being the share of experts in use, mean over the engines: the
    fuller the unions, the sooner another request would have brought the same expert, and to sort requests by what does not last
    lengthens the tail. For the same reason the prior counts ``1 - (A / E)**2``.
    """

    prior: float = 0.0
    max_load: float = MAX_LOAD
    name: str = "MarginalUnion"

    def __post_init__(self) -> None:
        if not 0.0 <= self.prior <= 1.0:
            raise ValueError(f"prior: expected 0..1, got {self.prior!r}")
        check_load(self.max_load)

    def costs(self, situation: Situation) -> list[float]:
        """Return the request's cost on each engine, seconds; needs an outlook."""
        outlook, n = situation.outlook, situation.sequences
        if outlook is None:
            raise ValueError("outlook: expected one, got None")
        once, twice = n * n, 2 * n
        used = min(1.0, sum(outlook.active) / (len(outlook.active) * situation.step_times[0].n_experts))
        lasting = 1.0 - used**_FADES
        costs = [
            # (B + n) T(B + n, A + dA) - B T(B, A) but for what does not last, multiplied out: this runs for every engine
            n * step_time.fixed
            + step_time.per_expert * (n * active + growth * (n + lasting * batch))
            + step_time.per_request * (once + twice * batch)
            for batch, active, growth, step_time in zip(
                situation.in_flight, outlook.active, outlook.growth, situation.step_times, strict=True
            )
        ]
        if situation.tokens and any(step_time.per_token for step_time in situation.step_times):
            context = situation.context
            costs = [
                # the same of the context: its own steps read what is there, and all read what it brings
                cost + step_time.per_token * (n * tokens + (batch + n) * context)
                for cost, batch, tokens, step_time in zip(
                    costs, situation.in_flight, situation.tokens, situation.step_times, strict=True
                )
            ]
        scores = situation.similarity
        if self.prior and scores is not None:
            if situation.tolls is not None:
                scores = list(map(sub, scores, situation.tolls))
            known = known_scores(scores)
            middle = sum(known) / len(known) if known else 0.0
            # of all engines alike: a slow one would draw who is near more than it puts off who is not
            weight = self.prior * (1.0 - used**_PRIOR_FADES) * n * _worth(situation.step_times)
            if len(known) < len(scores):  # NaN for an engine without a centroid, which is like all others
                scores = [middle if math.isnan(score) else score for score in scores]
            costs = [cost - weight * (score - middle) for cost, score in zip(costs, scores, strict=True)]
        return costs

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the cheapest engine; without an outlook, JSQ."""
        if situation.outlook is None:
            return _JSQ.choose(situation, rng)
        costs = self.costs(situation)
        if not math.isfinite(sum(costs)):
            return _JSQ.choose(situation, rng)
        best = _cheapest(costs)
        limit, n, loads = bound(situation, self.max_load), situation.sequences, situation.in_flight
        if any(loads[at] + n > limit for at in best):  # hardly ever: who is crowded is dear
            some = within(situation, self.max_load)
            best = [some[at] for at in _cheapest([costs[at] for at in some])]
        return least_loaded_of(best, situation)


def _worth(step_times: Sequence[StepTime]) -> float:
    """Return what reading every expert takes, seconds, mean over the engines."""
    first = step_times[0]
    if all(map(is_, step_times, repeat(first))):  # often
        return first.n_experts * first.per_expert
    return sum([one.n_experts * one.per_expert for one in step_times]) / len(step_times)


def _cheapest(costs: Sequence[float]) -> list[int]:
    """Return the positions of the costs that are the same as the least."""
    least = min(costs)
    limit = least + _SAME * abs(least)
    return [at for at, cost in enumerate(costs) if cost <= limit]

"""MarginalUnion: locality and load in one unit, seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eldr.core.balancers import JSQ
from eldr.core.policy import Choice, Situation, check_load, least_loaded_of, within

_JSQ = JSQ()
_SAME = 1e-4
"""Costs that differ by a smaller share differ by nothing."""


@dataclass(frozen=True, slots=True)
class MarginalUnion:
    """The worker on which a request adds least to the pool's total predicted step time.

    With ``B`` sequences in flight, ``A`` active experts expected, ``dA`` more through the request's ``n`` sequences, and the
    law ``T(B, A)``, a worker's cost is ``(B + n) T(B + n, A + dA) - B T(B, A)``: what the request's own steps take, and what it
    adds to those of everybody there. Where experts cost nothing, the fewest in flight win.

    Parameters
    ----------
    prior : float
        Weight of similarity to centroids, if there are any, as a share of a layer's experts: with 1, a cosine of 1 above the
        mean of all workers is worth as much as reading every expert. It tells workers apart while batches are small.
    max_load : float
        Only workers that would hold at most so many times the mean load are looked at.
    """

    prior: float = 0.0
    max_load: float = math.inf
    name: str = "MarginalUnion"

    def __post_init__(self) -> None:
        if not 0.0 <= self.prior <= 1.0:
            raise ValueError(f"prior: expected 0..1, got {self.prior!r}")
        check_load(self.max_load)

    def costs(self, situation: Situation) -> list[float]:
        """Return what the request would cost on each worker, seconds per step; needs an outlook."""
        outlook, n = situation.outlook, situation.sequences
        if outlook is None:
            raise ValueError("outlook: expected one, got None")
        costs = [
            (batch + n) * law.seconds(batch + n, active + growth) - batch * law.seconds(batch, active)
            for batch, active, growth, law in zip(
                situation.in_flight, outlook.active, outlook.growth, situation.laws, strict=True
            )
        ]
        if self.prior and situation.similarity is not None:
            known = [score for score in situation.similarity if not math.isnan(score)]
            middle = sum(known) / len(known) if known else 0.0
            for at, (score, law) in enumerate(zip(situation.similarity, situation.laws, strict=True)):
                if not math.isnan(score):
                    costs[at] -= self.prior * n * law.n_experts * law.per_expert * (score - middle)
        return costs

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the cheapest worker; without an outlook, JSQ."""
        if situation.outlook is None:
            return _JSQ.choose(situation, rng)
        costs = self.costs(situation)
        below = within(situation, self.max_load) if self.max_load < math.inf else range(len(costs))
        least = min(costs[at] for at in below)
        limit = least + _SAME * abs(least)
        return least_loaded_of([at for at in below if costs[at] <= limit], situation)

"""ELDR as the paper has it: a band of similarity, and load inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eldr.core.balancers import JSQ
from eldr.core.policy import Choice, Situation, check_load, known_scores, least_loaded_of, within

_JSQ = JSQ()


@dataclass(frozen=True, slots=True)
class BandJSQ:
    """ELDR: the least loaded of the engines with nearly the best similarity.

    Parameters
    ----------
    tau : float
        Width of the band: candidates have ``s_k >= max s - tau``. 0 is pure top-1, 2 is JSQ.
    min_candidates : int
        Widens the band to at least so many engines, next best similarity first.
    max_load : float
        Only engines that would hold at most so many times the mean load are looked at; the paper's band has no bound.

    References
    ----------
    .. [1] ELDR, arXiv 2607.00466, online routing; ``min_candidates = 2`` is the rule of its artifact.
    """

    tau: float = 0.1
    min_candidates: int = 1
    max_load: float = math.inf
    name: str = "ELDR"

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau <= 2.0:
            raise ValueError(f"tau: expected 0..2, got {self.tau!r}")
        if self.min_candidates < 1:
            raise ValueError(f"min_candidates: expected at least 1, got {self.min_candidates!r}")
        check_load(self.max_load)

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the least loaded engine of the band; without a preference, JSQ."""
        if situation.similarity is None:
            return _JSQ.choose(situation, rng)
        if self.max_load < math.inf:
            below = within(situation, self.max_load)
            if len(below) < len(situation.in_flight):
                scores = [situation.similarity[at] for at in below]
                return least_loaded_of([below[at] for at in self._band(scores)], situation)
        band = self._band(situation.similarity)
        if len(band) == len(situation.in_flight):
            return _JSQ.choose(situation, rng)
        return least_loaded_of(band, situation)

    def _band(self, scores: Sequence[float]) -> Sequence[int]:
        known = known_scores(scores)
        floor = max(known, default=0.0) - self.tau
        if len(scores) >= self.min_candidates and min(known, default=floor) >= floor:
            return range(len(scores))
        # every comparison with NaN is False: who has no centroid is in
        band = [at for at, score in enumerate(scores) if not score < floor]
        if len(band) < self.min_candidates:
            order = [-math.inf if math.isnan(score) else -score for score in scores]
            band = sorted(sorted(range(len(scores)), key=order.__getitem__)[: self.min_candidates])
        return band

"""What a centroid set would do to records that it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidSet
from eldr.contract import HARM_MARGIN
from eldr.core.balancers import JSQ
from eldr.core.band import BandJSQ
from eldr.core.halves import Interval, balanced_halves, interval
from eldr.core.pairs import Rows
from eldr.core.placement_sim import (
    PlacementResult,
    inclusion_probabilities,
    log_survival,
    random_unions,
    replay,
)
from eldr.core.policy import Policy
from eldr.core.signature import Floats
from eldr.fit.form import batches, make_signatures
from eldr.fit.samples import Samples

MIN_HELD_OUT = 16
MOST_RECORDS = 2048
"""Held-out records that are replayed: more would not narrow an interval that matters, and take memory."""
MIN_BATCH, MAX_BATCH = 4, 64
ARRIVALS, ARRIVALS_OF_HALF = 14, 4
"""Of each request that the pool holds: two to fill it, the others to look at. Fewer on each half of the records: there
are many halves."""
LEAST_ARRIVALS, LEAST_ARRIVALS_OF_HALF = 4096, 1024
"""In small pools: what one request does there is much of what is seen."""
SINGLE = 0.5
"""Share of decisions with one candidate that the suggested tau leaves: load decides the other half."""


class Band(NamedTuple):
    """How wide a band is: what ``tau`` means for these centroids.

    Attributes
    ----------
    tau : float
        The band that was assumed.
    single : float
        Share of decisions with one candidate in it: there similarity alone decides, and load nothing.
    suggested : float
        The ``tau`` with which that share would be ``SINGLE``.
    """

    tau: float
    single: float
    suggested: float


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Predicted placement on held-out records, with intervals.

    Shares of active experts.

    Attributes
    ----------
    jsq, new : PlacementResult
        On all held-out records.
    reduction : Interval
        What the new set saves against JSQ.
    active_reduction : Interval or None
        The same for the active set; None where there is none.
    gain : Interval or None
        What the new set saves more than the active one, on the same arrivals.
    saving : Interval
        What the new set saves against random batches of the same sizes, step by step as engines count.
    held_out : int
        Records that it rests on.
    band : Band
        Of the new set.
    """

    jsq: PlacementResult
    new: PlacementResult
    reduction: Interval
    active_reduction: Interval | None
    gain: Interval | None
    saving: Interval
    held_out: int
    band: Band

    @property
    def active_harms(self) -> bool | None:
        """Whether the active set significantly costs experts; None without."""
        return None if self.active_reduction is None else self.active_reduction.high < -HARM_MARGIN


class _Savings(NamedTuple):
    """Shares saved on some records."""

    new: float
    active: float
    random: float


class _Replays(NamedTuple):
    """The same arrivals under each policy."""

    jsq: PlacementResult
    new: PlacementResult
    active: PlacementResult | None
    survival: Floats

    def savings(self) -> _Savings:
        most = int(self.new.loads.max())
        return _Savings(
            self._saved(self.new),
            0.0 if self.active is None else self._saved(self.active),
            self.new.against(random_unions(self.survival, most)),
        )

    def _saved(self, placed: PlacementResult) -> float:
        # Records may count decode tokens and no expert: then there is nothing to save.
        return 1.0 - placed.active_experts / self.jsq.active_experts if self.jsq.active_experts > 0 else 0.0


def evaluate(
    samples: Samples,
    rows: Rows,
    centroids: CentroidSet,
    active: CentroidSet | None,
    *,
    k: int,
    seed: int,
    tau: float,
    min_candidates: int,
) -> Evaluation | None:
    """Replay held-out records against JSQ, the new set and the active one.

    Parameters
    ----------
    samples : Samples
    rows : ndarray of int, shape (n_rows,)
        The held-out records, ascending.
    centroids : CentroidSet
    active : CentroidSet or None
    k : int
        Engines.
    seed : int
    tau : float
    min_candidates : int
        The band.

    Returns
    -------
    Evaluation or None
        None where records with decode-time activations are too few, or there is nothing to choose.

    Notes
    -----
    Records arrive in random order, all of them before one comes again: the same in the pool twice would praise whoever
    puts them together. The figures are those of all records; their intervals come from replays of half of the records
    against the other half, each with arrivals of its own, see :mod:`eldr.core.halves`.
    """
    known = np.intersect1d(rows, samples.decoded, assume_unique=True)
    if len(known) < MIN_HELD_OUT or k < 2:
        return None
    if len(known) > MOST_RECORDS:
        known = known[np.linspace(0, len(known) - 1, MOST_RECORDS).astype(np.intp)]
    rng = np.random.default_rng(seed)
    batch = int(np.clip(round(float(samples.in_flight[known].mean())), MIN_BATCH, MAX_BATCH))
    survival = log_survival(inclusion_probabilities(samples.decode[known], samples.decode_tokens[known]))
    band = BandJSQ(tau=tau, min_candidates=min(min_candidates, k))
    similarity = similarities_to(samples, known, centroids, k)
    before = None if active is None else similarities_to(samples, known, active, k)

    def place(arrivals: Rows, policy: Policy, scores: Floats | None) -> PlacementResult:
        return replay(
            policy, arrivals, survival, scores, n_engines=k, batch=batch, rng=np.random.default_rng(seed)
        )

    def start(pool: ThreadPoolExecutor, some: Rows, n: int) -> Callable[[], _Replays]:
        arrivals = _arrivals(some, n, rng)
        jsq = pool.submit(place, arrivals, JSQ(), None)
        new = pool.submit(place, arrivals, band, similarity)
        old = None if before is None else pool.submit(place, arrivals, band, before)
        return lambda: _Replays(
            jsq.result(), new.result(), None if old is None else old.result(), survival[some]
        )

    with ThreadPoolExecutor(2) as pool:  # NumPy lets go of the interpreter for the exponentials
        full = start(pool, np.arange(len(known)), max(ARRIVALS * k * batch, LEAST_ARRIVALS))
        of_half = max(ARRIVALS_OF_HALF * k * batch, LEAST_ARRIVALS_OF_HALF)
        halves = [
            (start(pool, one, of_half), start(pool, other, of_half))
            for one, other in balanced_halves(len(known), rng)
        ]
        split = [(one().savings(), other().savings()) for one, other in halves]
    replayed = full()
    of_all = replayed.savings()

    def estimate(figure: Callable[[_Savings], float]) -> Interval:
        return interval(figure(of_all), [(figure(one), figure(other)) for one, other in split])

    return Evaluation(
        jsq=replayed.jsq,
        new=replayed.new,
        reduction=estimate(lambda savings: savings.new),
        active_reduction=None if active is None else estimate(lambda savings: savings.active),
        gain=None if active is None else estimate(lambda savings: savings.new - savings.active),
        saving=estimate(lambda savings: savings.random),
        held_out=len(known),
        band=measure_band(similarity, tau, band.min_candidates),
    )


def _arrivals(rows: Rows, n: int, rng: np.random.Generator) -> Rows:
    """Return ``n`` arrivals of these records: in random order, again and again."""
    return np.concatenate([rng.permutation(rows) for _ in range(-(-n // len(rows)))])[:n]


def measure_band(similarity: Floats, tau: float, min_candidates: int) -> Band:
    """Measure how often a band leaves one candidate.

    And the band that would do so in the share ``SINGLE`` of decisions.

    Parameters
    ----------
    similarity : ndarray of float32, shape (n_requests, k)
        At least two columns.
    tau : float
    min_candidates : int
        With 2 or more, no decision has one candidate.
    """
    best = np.sort(similarity, axis=1)
    lead = (best[:, -1] - best[:, -2]).astype(np.float64)
    single = float((lead > tau).mean()) if min_candidates == 1 else 0.0
    return Band(tau, single, float(np.quantile(lead, 1.0 - SINGLE)))


def similarities_to(samples: Samples, rows: Rows, centroids: CentroidSet, k: int) -> Floats:
    """Return cosines of records to the first ``k`` slots, (n_rows, k).

    NaN for slots that the set lacks.
    """
    scores = np.full((len(rows), k), np.nan, dtype=np.float32)
    weights, mask, centers = centroids.full_weights(), centroids.layer_mask, centroids.centers[:k].T
    at = 0
    for part in batches(rows):
        scores[at : at + len(part), : centers.shape[1]] = (
            make_signatures(samples, part, weights, mask) @ centers
        )
        at += len(part)
    return scores

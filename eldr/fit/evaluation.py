"""What a centroid set would do to records that it was not fitted on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.balancers import JSQ
from eldr.core.band import BandJSQ
from eldr.core.pairs import Rows
from eldr.core.placement_sim import PlacementResult, inclusion_probabilities, replay
from eldr.core.policy import Policy
from eldr.core.signature import Floats
from eldr.fit.form import make_signatures
from eldr.fit.samples import Samples

MIN_HELD_OUT = 16
MIN_BATCH, MAX_BATCH = 4, 64
ARRIVALS = 14
"""Of each request that the pool holds: two to fill it, twelve to look at."""
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
    """Predicted placement on held-out records.

    Attributes
    ----------
    jsq, new : PlacementResult
    active : PlacementResult or None
        With the set that is active now.
    held_out : int
        Records that it rests on.
    band : Band
        Of the new set.
    """

    jsq: PlacementResult
    new: PlacementResult
    active: PlacementResult | None
    held_out: int
    band: Band

    @property
    def reduction(self) -> float:
        """Share of active experts that the new set saves against JSQ."""
        return self._saved(self.new)

    @property
    def active_reduction(self) -> float | None:
        """The same for the active set."""
        return None if self.active is None else self._saved(self.active)

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
        The held-out records.
    centroids : CentroidSet
    active : CentroidSet, optional
    k : int
        Workers.
    seed : int
    tau : float
    min_candidates : int
        The band.

    Returns
    -------
    Evaluation or None
        None where records with decode-time activations are too few, or there is nothing to choose.
    """
    known = np.intersect1d(rows, samples.decoded, assume_unique=True)
    if len(known) < MIN_HELD_OUT or k < 2:
        return None
    batch = int(np.clip(round(float(samples.in_flight[known].mean())), MIN_BATCH, MAX_BATCH))
    drawn = np.random.default_rng(seed).integers(0, len(known), ARRIVALS * k * batch)
    # Only records that arrive need their probabilities: of a large log those are few.
    arriving, arrivals = np.unique(drawn, return_inverse=True)
    inclusion = inclusion_probabilities(
        samples.decode[known[arriving]], samples.decode_tokens[known[arriving]]
    )
    band = BandJSQ(tau=tau, min_candidates=min(min_candidates, k))

    def run(policy: Policy, similarity: Floats | None) -> PlacementResult:
        rng = np.random.default_rng(seed)
        return replay(
            policy,
            arrivals,
            inclusion,
            None if similarity is None else similarity[arriving],
            n_workers=k,
            batch=batch,
            rng=rng,
        )

    similarity = _similarities(samples, known, centroids, k)
    before = None if active is None else _similarities(samples, known, active, k)
    with ThreadPoolExecutor(2) as pool:  # NumPy lets go of the interpreter for the exponentials
        jsq, new = pool.submit(run, JSQ(), None), pool.submit(run, band, similarity)
        old = None if before is None else pool.submit(run, band, before)
    return Evaluation(
        jsq=jsq.result(),
        new=new.result(),
        active=None if old is None else old.result(),
        held_out=len(known),
        band=measure_band(similarity, tau, band.min_candidates),
    )


def measure_band(similarity: Floats, tau: float, min_candidates: int) -> Band:
    """Tell how often a band leaves one candidate, and which one would leave it in the share ``SINGLE`` of decisions.

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


def _similarities(samples: Samples, rows: Rows, centroids: CentroidSet, k: int) -> Floats:
    """Return cosines to the first ``k`` slots; NaN for slots that the set does not know."""
    scores = np.full((len(rows), k), np.nan, dtype=np.float32)
    points = make_signatures(samples, rows, centroids.full_weights(), centroids.layer_mask)
    known = points @ centroids.centers[:k].T
    scores[:, : known.shape[1]] = known
    return scores

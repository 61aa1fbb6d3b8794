"""Replay placement by a policy, and count expected active experts.

Requests arrive one by one and stay for the same number of arrivals, so that every policy sees the same pool at the
same occupancy; only the placement differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.policy import Policy, Situation
from eldr.core.random_batches import unions_by_size
from eldr.core.signature import Floats

LOOKS = 4
_CEILING = 0.999  # an expert that every captured token used: keeps log(1 - p) finite


@dataclass(frozen=True, slots=True, eq=False)
class PlacementResult:
    """States of the pool that were looked at.

    Attributes
    ----------
    loads : ndarray of int, shape (n_looks, n_engines)
        Requests of each engine.
    unions : ndarray of float64, shape (n_looks, n_engines)
        Expected distinct experts per layer in a step of each engine; 0 for one without requests.
    """

    loads: npt.NDArray[np.int64]
    unions: npt.NDArray[np.float64]

    @property
    def active_experts(self) -> float:
        """Expected distinct experts per layer in the steps of a request.

        Engines count by their load, because a plain mean over engines would praise a policy for crowding one of them.
        """
        return float((self.unions * self.loads).sum() / self.loads.sum())

    @property
    def batch(self) -> float:
        """Requests per non-empty engine, mean over time."""
        return float((self.loads.sum(axis=1) / (self.loads > 0).sum(axis=1)).mean())

    @property
    def imbalance(self) -> float:
        """Mean share of the largest engine times the engines; 1 is balance."""
        return float((self.loads.max(axis=1) * self.loads.shape[1] / self.loads.sum(axis=1)).mean())

    def against(self, random: npt.NDArray[np.float64]) -> float:
        """Return the share of active experts saved against random batches.

        Random batches have the same sizes.

        Every step counts once, as in an engine's metrics.

        Parameters
        ----------
        random : ndarray of float64, shape (at least largest load + 1,)
            Expected distinct experts of random batches of each size, see :func:`random_unions`.
        """
        expected = float(random[self.loads].sum())
        return 1.0 - float(self.unions.sum()) / expected if expected > 0 else 0.0


def inclusion_probabilities(counts: npt.NDArray[np.integer], tokens: npt.NDArray[np.integer]) -> Floats:
    """Return how likely one decode step of each request uses each expert.

    Parameters
    ----------
    counts : ndarray of int, shape (n_requests, n_layers, n_experts)
        Decode-time activations.
    tokens : ndarray of int, shape (n_requests,)
        Tokens counted, at least 1.

    Returns
    -------
    ndarray of float32, shape (n_requests, n_layers, n_experts)
    """
    if tokens.min() < 1:
        raise ValueError(f"tokens: expected at least 1 per request, got {tokens.min()}")
    inclusion = np.empty(counts.shape, dtype=np.float32)
    # doubles of one request at a time, not of all
    for row, one, n in zip(inclusion, counts, tokens, strict=True):
        row[:] = np.minimum(one / n, _CEILING)
    return inclusion


def random_unions(survival: Floats, most: int) -> npt.NDArray[np.float64]:
    """Return the distinct experts that random batches are expected to use.

    Per layer, for batches of 0 to ``most`` of these requests.

    Parameters
    ----------
    survival : ndarray of float32, shape (n_requests, n_layers, n_experts)
        See :func:`log_survival`.
    most : int

    Returns
    -------
    ndarray of float64, shape (most + 1,)
        See :func:`eldr.core.random_batches.unions_by_size`.
    """
    n, layers, experts = survival.shape
    total = np.zeros((layers, experts))
    for row in survival:  # doubles of one request at a time, not of all
        total += np.exp(row)
    return unions_by_size(total / n, most)


def log_survival(inclusion: Floats) -> Floats:
    """Return ``log(1 - p)`` of inclusion probabilities.

    Summed over requests, it is the log of the chance that none uses an expert.
    """
    survival: Floats = np.log1p(-inclusion)
    return survival


def replay(
    policy: Policy,
    arrivals: npt.NDArray[np.integer],
    survival: Floats,
    similarity: Floats | None,
    *,
    n_engines: int,
    batch: int,
    rng: np.random.Generator,
) -> PlacementResult:
    """Place a stream of requests, and return the expected unions.

    Parameters
    ----------
    policy : Policy
    arrivals : ndarray of int, shape (n_arrivals,)
        Index of the request that arrives, more than ``2 * n_engines * batch`` of them.
    survival : ndarray of float32, shape (n_requests, n_layers, n_experts)
        See :func:`log_survival`.
    similarity : ndarray of float32, shape (n_requests, n_engines), optional
        Cosine of each request to each engine's centroid, NaN for an engine without one.
    n_engines : int
    batch : int
        Mean requests per engine to hold.
    rng : numpy.random.Generator

    Notes
    -----
    The union is ``E - sum_e prod_r (1 - p_re)``, kept as one running log sum per engine. After a warm-up of twice the
    pool's occupancy it is looked at ``LOOKS`` times while the pool's requests are replaced once: looks that lie nearer
    together say the same.
    """
    occupancy = n_engines * batch
    if len(arrivals) <= 2 * occupancy:
        raise ValueError(f"arrivals: {len(arrivals)} do not fill a pool of {occupancy} twice")
    _, layers, experts = survival.shape
    pool = np.zeros((n_engines, layers, experts), dtype=np.float32)
    in_flight = [0] * n_engines
    rows = arrivals.tolist()
    placed: list[int] = []
    every = max(batch, occupancy // LOOKS)
    loads: list[list[int]] = []
    unions: list[npt.NDArray[np.float64]] = []
    for turn, request in enumerate(rows):
        if turn >= occupancy:
            leaving = placed[turn - occupancy]
            in_flight[leaving] -= 1
            pool[leaving] -= survival[rows[turn - occupancy]]
        scores = None if similarity is None else similarity[request].tolist()
        engine = policy.choose(Situation(in_flight, turn, scores), rng).position
        placed.append(engine)
        in_flight[engine] += 1
        pool[engine] += survival[request]
        if turn >= 2 * occupancy and turn % every == 0:
            loads.append(in_flight.copy())
            union = experts - np.exp(pool).sum(axis=(1, 2), dtype=np.float64) / layers
            unions.append(np.where(np.array(in_flight) > 0, union, 0.0))
    return PlacementResult(np.array(loads), np.array(unions))

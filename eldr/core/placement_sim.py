"""What a policy would do to the active experts of a pool: replayed placement with expected unions.

Requests arrive one by one and stay for the same number of arrivals, so that every policy sees the same pool at the
same occupancy; only the placement differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eldr.core.policy import Policy, Situation
from eldr.core.signature import Floats

_CEILING = 0.999  # an expert that every captured token used: keeps log(1 - p) finite


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """Mean over time.

    Attributes
    ----------
    active_experts : float
        Expected distinct experts per layer in the steps of a request: workers count by their load, because a plain
        mean over workers would praise a policy for crowding one of them.
    batch : float
        Requests per non-empty worker.
    imbalance : float
        Mean over time of the largest worker's share times the number of workers; 1 is perfect balance.
    """

    active_experts: float
    batch: float
    imbalance: float


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


def replay(
    policy: Policy,
    arrivals: npt.NDArray[np.integer],
    inclusion: Floats,
    similarity: Floats | None,
    *,
    n_workers: int,
    batch: int,
    rng: np.random.Generator,
) -> PlacementResult:
    """Place a stream of requests and measure the expected union of active experts.

    Parameters
    ----------
    policy : Policy
    arrivals : ndarray of int, shape (n_arrivals,)
        Index of the request that arrives, more than ``2 * n_workers * batch`` of them.
    inclusion : ndarray of float32, shape (n_requests, n_layers, n_experts)
        See :func:`inclusion_probabilities`.
    similarity : ndarray of float32, shape (n_requests, n_workers), optional
        Cosine of each request to each worker's centroid, NaN for a worker without one.
    n_workers : int
    batch : int
        Mean requests per worker to hold.
    rng : numpy.random.Generator

    Notes
    -----
    The union is ``E - sum_e prod_r (1 - p_re)``, kept as one running log sum per worker. It is sampled once per
    ``batch`` arrivals, after a warm-up of twice the pool's occupancy.
    """
    occupancy = n_workers * batch
    if len(arrivals) <= 2 * occupancy:
        raise ValueError(f"arrivals: {len(arrivals)} do not fill a pool of {occupancy} twice")
    _, layers, experts = inclusion.shape
    survival = np.log1p(-inclusion)
    pool = np.zeros((n_workers, layers, experts), dtype=np.float64)
    in_flight = [0] * n_workers
    placed = np.zeros(len(arrivals), dtype=np.intp)
    samples: list[tuple[float, float, float]] = []
    for turn, request in enumerate(arrivals):
        if turn >= occupancy:
            leaving = placed[turn - occupancy]
            in_flight[leaving] -= 1
            pool[leaving] -= survival[arrivals[turn - occupancy]]
        scores = None if similarity is None else similarity[request].tolist()
        worker = policy.choose(Situation(in_flight, turn, scores), rng).worker
        placed[turn] = worker
        in_flight[worker] += 1
        pool[worker] += survival[request]
        if turn >= 2 * occupancy and turn % batch == 0:
            loads = np.array(in_flight)
            busy = loads > 0
            union = experts - np.exp(pool[busy]).sum(axis=2).mean(axis=1)
            load = loads[busy]
            seen = float(union @ load / occupancy)
            samples.append((seen, float(load.mean()), float(load.max() * n_workers / occupancy)))
    active, mean_batch, imbalance = np.mean(samples, axis=0)
    return PlacementResult(active_experts=float(active), batch=float(mean_batch), imbalance=float(imbalance))

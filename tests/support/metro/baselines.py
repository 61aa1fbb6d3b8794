"""What METRO is compared with: placement and choices that balance tokens. Without replicas there is nothing to choose; any choice gives that."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eldr.engine.balance.packing import Weights, fill
from tests.support.metro.choice import Flags
from tests.support.metro.placement import Ids, Placement

HASH = 2654435769
"""2^32 divided by the golden ratio: Knuth's multiplicative hash, as vLLM 0.32 spreads a step's tokens over replicas."""


def pack(weights: npt.ArrayLike, n_physical: int, ranks: int) -> Ids:
    """Place replicas as EPLB does: replicate the heaviest experts, and spread the replicas over ranks by weight.

    Parameters
    ----------
    weights : array_like of float, shape (E,)
        Tokens, as EPLB has it.
    n_physical : int
        P: at least E, a multiple of the ranks.

    Returns
    -------
    ndarray of int64, shape (P,)
        The expert in each physical slot, rank after rank.

    Notes
    -----
    Each further replica goes to the expert with the largest weight per replica; then the replicas, heaviest first, each to the lightest rank
    with a free slot, one without this expert if there is such. Ties go to the lowest id.
    """
    weight = np.asarray(weights, dtype=np.float64)
    experts = len(weight)
    count = _replicate(weight, n_physical - experts)
    on: list[list[int]] = [[] for _ in range(ranks)]
    fill(on, np.repeat(np.arange(experts), count), np.repeat(weight / count, count), n_physical // ranks)
    return np.array(on, dtype=np.int64).ravel()


def _replicate(weight: Weights, redundant: int) -> Ids:
    """Return the number of replicas of each expert."""
    count = np.ones(len(weight), dtype=np.int64)
    heap = [(-w, e) for e, w in enumerate(weight.tolist())]
    heapq.heapify(heap)
    for _ in range(redundant):
        e = heap[0][1]
        count[e] += 1
        heapq.heapreplace(heap, (-float(weight[e]) / int(count[e]), e))
    return count


def active_set(expert_ids: npt.NDArray[np.integer], n_experts: int) -> Flags:
    """Return which experts a step's tokens use, bool of shape (E,).

    Parameters
    ----------
    expert_ids : ndarray of int, any shape
        Ids outside 0..E-1 are padding, and name none.
    n_experts : int
    """
    ids = expert_ids.ravel()
    active = np.zeros(n_experts, dtype=bool)
    active[ids[(ids >= 0) & (ids < n_experts)]] = True
    return active


def vllm_choice(
    expert_ids: npt.NDArray[np.integer], placement: Placement, sizes: Sequence[int] | None = None
) -> Ids:
    """Return the physical id vLLM 0.32 chooses for every token: replica ``hash(token's index) mod replicas``.

    Parameters
    ----------
    expert_ids : ndarray of int, shape (T, K)
        Experts of each token; ids outside 0..E-1 become -1.
    placement : Placement
    sizes : sequence of int, optional
        Tokens per rank of a data-parallel engine, whose ranks count their tokens from 0; their sum is T. By default one count.

    Returns
    -------
    ndarray of int64, shape (T, K)

    """
    table, count = placement.maps()
    index = np.concatenate([np.arange(n) for n in sizes or (len(expert_ids),)])
    hashed = (index.astype(np.uint64) * np.uint64(HASH)) & np.uint64(0xFFFFFFFF)
    known = (expert_ids >= 0) & (expert_ids < placement.n_experts)
    ids = np.where(known, expert_ids, 0).astype(np.int64)
    replica = (hashed[:, None] % count[ids].astype(np.uint64)).astype(np.int64)
    return np.where(known, table[ids, replica], -1)

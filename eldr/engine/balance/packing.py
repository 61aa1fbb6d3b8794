"""Placement of replicas by how often an expert is active.

EPLB balances tokens: rarely used experts crowd on few ranks, for they weigh nothing there, and a step that uses them all waits for those
ranks. A decode step pays for an expert once, however many tokens use it, so an expert should weigh how often a step uses it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def activation_weights(tokens: npt.ArrayLike, steps: int) -> Weights:
    """Return how often each expert is active in a step, estimated from sums of tokens: ``1 - exp(-tokens per step)``.

    Parameters
    ----------
    tokens : array_like of float, shape (E,)
        Tokens that each expert got over all steps: all that EPLB's policies are given.

    Returns
    -------
    ndarray of float64, shape (E,)
        That of a Poisson number of tokens per step with this mean.
    """
    weights: Weights = -np.expm1(-np.asarray(tokens, dtype=np.float64) / steps)
    return weights


def spread(weights: npt.ArrayLike, n_physical: int, ranks: int) -> Ids:
    """Give every expert a home, and the heaviest ones a replica elsewhere.

    Parameters
    ----------
    weights : array_like of float, shape (E,)
        :func:`activation_weights`, or tokens.
    n_physical : int
        P: at least E, a multiple of the ranks.

    Returns
    -------
    ndarray of int64, shape (P,)
        The expert in each physical slot, rank after rank.

    Notes
    -----
    Homes are as many on every rank, and balanced by weight: a placement without replicas. Replicas only add to it, so that
    an exact choice is never worse than without them, in any step. They go to the rank that shares the fewest experts with the home, so that a
    full rank can offload to each of the others; of these to one with most free slots, then the lightest by
    its homes. Each expert gets a second replica before one gets a third. What is left, where every rank holds every expert, repeats a rank's first.
    """
    weight = np.asarray(weights, dtype=np.float64)
    experts, slots = len(weight), n_physical // ranks
    on: list[list[int]] = [[] for _ in range(ranks)]
    load = fill(on, np.arange(experts), weight, -(-experts // ranks))
    holders: list[list[int]] = [[] for _ in range(experts)]
    for rank, held in enumerate(on):
        for e in held:
            holders[e].append(rank)
    shared = [[0] * ranks for _ in range(ranks)]

    def preference(rank: int, mine: list[int]) -> tuple[int, int, float, int]:
        return sum(shared[rank][other] for other in mine), len(on[rank]), load[rank], rank

    order = np.argsort(-weight, kind="stable").tolist()
    placed = True
    while placed:
        placed = False
        for e in order:
            mine = holders[e]
            free = [r for r, held in enumerate(on) if len(held) < slots and r not in mine]
            if free:
                _, _, _, rank = min(preference(r, mine) for r in free)
                for other in mine:
                    shared[rank][other] += 1
                    shared[other][rank] += 1
                on[rank].append(e)
                mine.append(rank)
                placed = True
    for held in on:
        held.extend(held[:1] * (slots - len(held)))
    return np.array(on, dtype=np.int64).ravel()


def fill(on: list[list[int]], experts: Ids, shares: Weights, slots: int) -> list[float]:
    """Put replicas, heaviest first, on the lightest rank with room, on one without this expert if there is such; return the weights."""
    load = [0.0] * len(on)
    for i in np.argsort(-shares, kind="stable").tolist():
        e = int(experts[i])
        rank = min(
            (r for r, held in enumerate(on) if len(held) < slots), key=lambda r: (e in on[r], load[r], r)
        )
        on[rank].append(e)
        load[rank] += float(shares[i])
    return load

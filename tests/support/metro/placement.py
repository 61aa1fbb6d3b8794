"""Where the replicas of every expert of one layer are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

EMPTY = -1
"""A physical slot without an expert, and what stands for "no such replica"."""


class Placement:
    """The replicas of one layer's experts, and what choosing among them needs.

    Parameters
    ----------
    physical_to_logical : array_like of int, shape (P,)
        Expert in each physical slot, as EPLB's map of one layer; -1 in an empty one.
    n_experts : int
        E.
    ranks : int
        R; slot ``p`` lies on rank ``p // (P // R)``.

    Attributes
    ----------
    physical_to_logical : ndarray of int64, shape (P,)
    n_experts, ranks, per_rank : int
        E, R and P / R.
    physical : ndarray of int64, shape (E, R)
        Lowest physical id of each expert on each rank, -1 where it has none: two replicas on one rank are one.
    held : ndarray of bool, shape (E, R)
        Which ranks hold each expert.
    holders : list of list of int
        The same as ranks, in order.
    home : ndarray of int64, shape (E,)
        Lowest rank that holds each expert.
    single : ndarray of bool, shape (E,)
        Experts that one rank holds: nothing is to be chosen.
    """

    def __init__(self, physical_to_logical: npt.ArrayLike, n_experts: int, ranks: int) -> None:
        self.physical_to_logical = slots = np.asarray(physical_to_logical).astype(np.int64)
        self.n_experts, self.ranks, self.per_rank = n_experts, ranks, len(slots) // ranks
        used = np.flatnonzero(slots != EMPTY)[::-1]  # the lowest id is written last and stays
        self.physical = np.full((n_experts, ranks), EMPTY, dtype=np.int64)
        self.physical[slots[used], used // max(1, self.per_rank)] = used
        self.held = self.physical != EMPTY
        self.holders: list[list[int]] = [np.flatnonzero(row).tolist() for row in self.held]
        self.home = self.held.argmax(1)
        self.single = self.held.sum(1) == 1

    def maps(self) -> tuple[Ids, Ids]:
        """Return EPLB's other map and its replica counts: shapes (E, M) and (E,), -1 behind the replicas."""
        used = np.flatnonzero(self.physical_to_logical != EMPTY)
        expert = self.physical_to_logical[used]
        count = np.bincount(expert, minlength=self.n_experts)
        order = np.argsort(expert, kind="stable")
        column = np.arange(len(used)) - np.repeat(np.cumsum(count) - count, count)
        table = np.full((self.n_experts, int(count.max())), EMPTY, dtype=np.int64)
        table[expert[order], column] = used[order]
        return table, count

    def physical_ids(self, rank_of: npt.NDArray[np.integer]) -> Ids:
        """Return the physical id of every expert on the rank chosen for it, int64 of shape (E,)."""
        ids: Ids = self.physical[np.arange(self.n_experts), rank_of]
        return ids

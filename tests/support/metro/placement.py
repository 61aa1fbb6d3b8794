"""Where the replicas of every expert of one layer are."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from eldr.engine.balance.packing import PlacementError

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
    home : ndarray of int64, shape (E,)
        Lowest rank that holds each expert.
    single : ndarray of bool, shape (E,)
        Experts that one rank holds: nothing is to be chosen.
    choices : ndarray of int64
        The other experts, those of few ranks first, then by id: the order in which they are placed.
    pairs, groups : list of tuple of int
        Ranks that hold each of ``choices``, ascending: first those that two hold, then the others.
    several : ndarray of int64
        The same experts by id.
    experts_of : list of int
        For each rank those of ``several`` that it holds, as a set: a bit for each, the lowest id's the lowest.

    Raises
    ------
    PlacementError
        If a map is not of this shape, names experts that are none, or misses one.
    """

    def __init__(self, physical_to_logical: npt.ArrayLike, n_experts: int, ranks: int) -> None:
        slots = _integers("physical_to_logical", physical_to_logical, 1)
        if n_experts < 1:
            raise PlacementError(f"n_experts: {n_experts}; a layer has at least one expert")
        if ranks < 1 or len(slots) % ranks:
            raise PlacementError(
                f"ranks: {ranks}; physical_to_logical has {len(slots)} slots, which every rank must hold equally many of: "
                "choose redundant experts so that experts + redundant is a multiple of the ranks"
            )
        if slots.size and not (slots.min() >= EMPTY and slots.max() < n_experts):
            wrong = int(slots[(slots < EMPTY) | (slots >= n_experts)][0])
            raise PlacementError(
                f"physical_to_logical: {wrong}; experts are 0 to {n_experts - 1}, an empty slot is {EMPTY}"
            )
        self.physical_to_logical = slots
        self.n_experts, self.ranks, self.per_rank = n_experts, ranks, len(slots) // ranks
        used = np.flatnonzero(slots != EMPTY)[::-1]  # the lowest id is written last and stays
        self.physical = np.full((n_experts, ranks), EMPTY, dtype=np.int64)
        self.physical[slots[used], used // max(1, self.per_rank)] = used
        self.held = self.physical != EMPTY
        holders = self.held.sum(1)
        if not holders.all():
            missing = int(np.flatnonzero(holders == 0)[0])
            raise PlacementError(
                f"physical_to_logical: expert {missing} is in no slot; every expert needs a replica"
            )
        self.home = self.held.argmax(1)
        self.single = holders == 1
        self.several = np.flatnonzero(~self.single)
        self.choices: Ids = self.several[np.argsort(holders[self.several], kind="stable")]
        ranks_of = [tuple(np.flatnonzero(self.held[e]).tolist()) for e in self.choices]
        self.pairs = [(one, other) for one, other, *more in ranks_of if not more]
        self.groups = ranks_of[len(self.pairs) :]
        self.experts_of = as_bits(self.held[self.several].T)

    @classmethod
    def from_maps(
        cls, logical_to_physical: npt.ArrayLike, replica_count: npt.ArrayLike, per_rank: int, ranks: int
    ) -> Self:
        """Read EPLB's other map, of one layer.

        Parameters
        ----------
        logical_to_physical : array_like of int, shape (E, M)
            Physical ids of each expert's replicas; what lies behind ``replica_count`` does not count.
        replica_count : array_like of int, shape (E,)
        per_rank : int
            P / R.
        ranks : int

        Raises
        ------
        PlacementError
            If the two disagree, a slot holds two experts, or as above.
        """
        ids = _integers("logical_to_physical", logical_to_physical, 2)
        count = _integers("replica_count", replica_count, 1)
        if len(count) != len(ids):
            raise PlacementError(
                f"replica_count: of {len(count)} experts, logical_to_physical of {len(ids)}; take both from one layer"
            )
        if count.size and not (count.min() >= 0 and count.max() <= ids.shape[1]):
            wrong = int(count[(count < 0) | (count > ids.shape[1])][0])
            raise PlacementError(
                f"replica_count: {wrong}; logical_to_physical has room for 0 to {ids.shape[1]} replicas"
            )
        if per_rank < 1:
            raise PlacementError(f"per_rank: {per_rank}; every rank holds at least one physical expert")
        known = np.arange(ids.shape[1]) < count[:, None]
        physical, total = ids[known], per_rank * ranks
        if physical.size and not (physical.min() >= 0 and physical.max() < total):
            wrong = int(physical[(physical < 0) | (physical >= total)][0])
            raise PlacementError(
                f"logical_to_physical: {wrong} before the end that replica_count says; {ranks} ranks of {per_rank} have slots "
                f"0 to {total - 1}"
            )
        slots = np.full(total, EMPTY, dtype=np.int64)
        slots[physical] = np.repeat(np.arange(len(ids)), count)
        if len(np.unique(physical)) != len(physical):
            twice = int(np.flatnonzero(np.bincount(physical) > 1)[0])
            raise PlacementError(
                f"logical_to_physical: slot {twice} is named twice; a slot holds one expert, so the map is torn: read it between steps"
            )
        return cls(slots, len(ids), ranks)

    def maps(self) -> tuple[Ids, Ids]:
        """Return EPLB's other map and its replica counts: shapes (E, M) and (E,), -1 behind the replicas."""
        return self._maps

    @cached_property
    def _maps(self) -> tuple[Ids, Ids]:
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

    def digest(self) -> str:
        """Return what two ranks compare to know that they hold the same map."""
        head = f"{self.n_experts} {self.ranks} {len(self.physical_to_logical)}".encode()
        return hashlib.blake2b(
            head + self.physical_to_logical.astype("<i8").tobytes(), digest_size=16
        ).hexdigest()

    def __repr__(self) -> str:
        return (
            f"<Placement {self.n_experts} experts in {len(self.physical_to_logical)} slots of {self.ranks} ranks, "
            f"{len(self.choices)} with a choice>"
        )


def as_bits(flags: npt.NDArray[np.bool_]) -> list[int]:
    """Return each row as an integer, its first flag as the lowest bit."""
    packed = np.packbits(flags, axis=1, bitorder="little")
    width, whole = packed.shape[1], packed.tobytes()
    return [int.from_bytes(whole[at * width : (at + 1) * width], "little") for at in range(len(packed))]


def _integers(name: str, values: npt.ArrayLike, dimensions: int) -> Ids:
    array = np.asarray(values)
    if array.ndim != dimensions or not np.issubdtype(array.dtype, np.integer):
        raise PlacementError(
            f"{name}: {array.dtype} of shape {array.shape}; expected integers of {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    return array.astype(np.int64)

"""One step's choice: greedy, and exactly optimal.

Every rule has one answer, and all arithmetic is of integers: ranks that choose by themselves must choose alike. The forms for engines
(``eldr.engine.balance.choose_torch``, ``choose_triton``) give the same table.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.metro.placement import Ids, Placement, as_bits

Flags = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """One rank per expert.

    Attributes
    ----------
    load : list of int
        Experts that each rank activates.
    rank_of : ndarray of int64, shape (E,)
        Rank of every expert; of an inactive one, and of one without a choice, the lowest that holds it.
    """

    load: list[int]
    rank_of: Ids


def greedy(active: Flags, placement: Placement) -> Choice:
    """Give every active expert to its least loaded holder.

    Parameters
    ----------
    active : ndarray of bool, shape (E,)
        Experts that any token of the step uses.
    placement : Placement

    Returns
    -------
    Choice

    Raises
    ------
    ValueError
        If ``active`` is not of this shape.

    Notes
    -----
    Experts with one holder come first, then those with few, ties by expert id; equally loaded holders are taken by rank. The order matters: as
    the paper prints it, arbitrary, half of all random batches and more miss the optimum.
    """
    load = _fixed(active, placement)
    return Choice(load, _place(active, placement, load))


def exact(active: Flags, placement: Placement) -> Choice:
    """Choose so that the fullest rank activates as few experts as any choice can.

    Parameters and errors are those of :func:`greedy`.

    Returns
    -------
    Choice

    Notes
    -----
    The greedy choice, then relief paths from the fullest rank u: to a rank with at most ``load[u] - 2``, one expert moved per edge. If there is
    none, the ranks that u reaches carry at least ``load[u] - 1`` each, and their experts have no holder outside; so by the pigeonhole
    principle no choice has a smaller fullest rank. It stops before, where that is as full as its experts of one holder or the mean.
    """
    load = _fixed(active, placement)
    bound = max(load)
    rank_of = _place(active, placement, load)
    bound = max(bound, -(-sum(load) // placement.ranks))
    if max(load) > bound:
        _Relief(active, placement, load, rank_of).run(bound)
    return Choice(load, rank_of)


def _fixed(active: Flags, placement: Placement) -> list[int]:
    """Return the load by experts that one rank holds."""
    if active.shape != placement.single.shape or active.dtype != np.bool_:
        raise ValueError(
            f"active: {active.dtype} of shape {active.shape}; expected bool of shape ({placement.n_experts},), one per expert"
        )
    load: list[int] = np.bincount(
        placement.home[active & placement.single], minlength=placement.ranks
    ).tolist()
    return load


def _place(active: Flags, placement: Placement, load: list[int]) -> Ids:
    """Place the others, and add them to ``load``."""
    rank_of: Ids = placement.home.copy()
    flags = active[placement.choices]
    wanted = flags.tolist()
    chosen = []
    for one, other in compress(placement.pairs, wanted):  # mostly two, and this is where the time goes
        rank = other if load[other] < load[one] else one
        load[rank] += 1
        chosen.append(rank)
    for holders in compress(placement.groups, wanted[len(placement.pairs) :]):
        rank = holders[0]
        least = load[rank]
        for holder in holders:
            if load[holder] < least:
                rank, least = holder, load[holder]
        load[rank] = least + 1
        chosen.append(rank)
    rank_of[placement.choices[flags]] = chosen
    return rank_of


class _Relief:
    """Moves along relief paths. Sets of experts are bits of an integer: an edge is one ``&``."""

    def __init__(self, active: Flags, placement: Placement, load: list[int], rank_of: Ids) -> None:
        self._held, self._experts = placement.experts_of, placement.several
        self._load, self._rank_of = load, rank_of
        here = rank_of[self._experts] == np.arange(placement.ranks)[:, None]
        self._on = as_bits(here & active[self._experts])

    def run(self, bound: int) -> None:
        load = self._load
        while (top := max(load)) > bound:
            source = load.index(top)
            goal, came = self._search(source, top - 2)
            if goal < 0:
                break
            load[source] -= 1
            load[goal] += 1
            while goal != source:
                origin = came[goal]
                movable = self._on[origin] & self._held[goal]
                moved = movable & -movable
                self._on[origin] ^= moved
                self._on[goal] |= moved
                self._rank_of[self._experts[moved.bit_length() - 1]] = goal
                goal = origin

    def _search(self, source: int, room: int) -> tuple[int, list[int]]:
        """Return the nearest rank with a load of at most ``room``, -1 if there is none, and whence each was reached.

        Of equally near ones the least loaded, then the lowest; reached from the lowest that is nearer.
        """
        load, on = self._load, self._on
        came = [-1] * len(load)
        came[source] = source
        level = [source]
        while level:
            following = []
            for rank, held in enumerate(self._held):
                if came[rank] < 0:
                    for origin in level:
                        if on[origin] & held:
                            came[rank] = origin
                            following.append(rank)
                            break
            goal = min(following, key=load.__getitem__, default=source)
            if load[goal] <= room:
                return goal, came
            level = following
        return -1, came

"""One step's choice, by the product's rules on a :class:`Placement`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.engine.balance import choose
from tests.support.metro.placement import Ids, Placement

Flags = npt.NDArray[np.bool_]


class Choice(NamedTuple):
    """One rank per expert.

    Attributes
    ----------
    load : list of int
        Experts that each rank activates.
    rank_of : ndarray of int64, shape (E,)
        Rank of every expert; of an inactive one the lowest that holds it.
    """

    load: list[int]
    rank_of: Ids


def greedy(active: Flags, placement: Placement) -> Choice:
    """Give every active expert to its least loaded holder, see :func:`eldr.engine.balance.choose.place`.

    As the METRO paper prints it, in any order, half of all random batches and more miss the optimum.
    """
    load, rank_of, _ = choose.place(active.tolist(), placement.holders, placement.ranks)
    return Choice(load, np.array(rank_of))


def exact(active: Flags, placement: Placement) -> Choice:
    """Choose so that the fullest rank activates as few experts as any choice can, see :func:`eldr.engine.balance.choose.choose`."""
    load, rank_of = choose.choose(active.tolist(), placement.holders, placement.ranks)
    return Choice(load, np.array(rank_of))

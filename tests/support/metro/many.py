"""Choices for many steps at once, as simulators need them: loads only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.support.metro.choice import Flags, exact
from tests.support.metro.placement import Placement

Loads = npt.NDArray[np.int64]


def greedy_loads(active: Flags, placement: Placement) -> Loads:
    """Return the loads of :func:`tests.support.metro.greedy` for many steps.

    Parameters
    ----------
    active : ndarray of bool, shape (N, E)
    placement : Placement

    Returns
    -------
    ndarray of int64, shape (N, R)
        Experts that each rank activates in each step.

    Raises
    ------
    ValueError
        If ``active`` is not of this shape.
    """
    load = _fixed(active, placement)
    _place(active, placement, load)
    return load


def exact_loads(active: Flags, placement: Placement) -> Loads:
    """Return the loads of :func:`tests.support.metro.exact` for many steps; arguments as of :func:`greedy_loads`.

    Most steps' greedy choice is optimal, and seen to be; only the others are looked at one by one.
    """
    load = _fixed(active, placement)
    fixed = load.max(1)
    _place(active, placement, load)
    bound = np.maximum(fixed, -(-load.sum(1) // placement.ranks))
    for row in np.flatnonzero(load.max(1) > bound):
        load[row] = exact(active[row], placement).load
    return load


def _fixed(active: Flags, placement: Placement) -> Loads:
    if active.ndim != 2 or active.shape[1] != placement.n_experts or active.dtype != np.bool_:
        raise ValueError(
            f"active: {active.dtype} of shape {active.shape}; expected bool of shape (steps, {placement.n_experts})"
        )
    single = placement.single
    load: Loads = active[:, single].astype(np.int64) @ placement.held[single].astype(np.int64)
    return load


def _place(active: Flags, placement: Placement, load: Loads) -> None:
    rows = np.arange(len(active))
    for expert, holders in zip(
        placement.choices.tolist(), [*placement.pairs, *placement.groups], strict=True
    ):
        ranks = np.asarray(holders)
        best = ranks[load[:, ranks].argmin(1)]
        load[rows, best] += active[:, expert]

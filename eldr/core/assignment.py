"""Exact capacity-constrained assignment of many points to few clusters: prices come near, moves finish."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.moves import Doubles, Labels, Moves
from eldr.core.prices import balancing_prices

Costs = npt.NDArray[np.floating]


class Assignment(NamedTuple):
    """An optimal assignment.

    Attributes
    ----------
    labels : ndarray of int, shape (n_points,)
        Cluster of each point.
    prices : ndarray of float64, shape (n_clusters,)
        Prices near those of the optimum: what the next assignment with similar costs starts from.
    """

    labels: Labels
    prices: Doubles


def assign_balanced(costs: Costs, capacity: int, start: Assignment | None = None) -> Assignment:
    """Assign every point to a cluster at least total cost, no cluster above its capacity.

    Parameters
    ----------
    costs : ndarray of float, shape (n_points, n_clusters)
        Cost of each point in each cluster, finite.
    capacity : int
        Most points per cluster; ``n_clusters * capacity >= n_points``.
    start : Assignment, optional
        A feasible assignment, such as that of nearly the same costs: its prices save most of the work, and its labels
        are kept if they are optimal.

    Returns
    -------
    Assignment
        Among several optimal ones, one of them.

    Raises
    ------
    ValueError
        If the costs are not finite, the points do not fit, or ``start`` is not feasible.

    Notes
    -----
    Prices by :func:`eldr.core.prices.balancing_prices` bring nearly all points where they belong. The few that are too many move
    along cheapest chains on a graph of ``n_clusters + 1`` nodes. Cancelling negative cycles there makes the result exact,
    however good the prices were.
    """
    _check(costs, capacity)
    n, k = costs.shape
    if start is not None:
        _check_start(start, n, k, capacity)
    if k == 1:
        return Assignment(np.zeros(n, dtype=np.intp), np.zeros(1))
    exact = costs.astype(np.float64)
    prices, labels = balancing_prices(exact, capacity, None if start is None else start.prices)
    moves = Moves(exact, labels, capacity)
    moves.relieve()
    moves.cancel()
    if start is not None:
        moves.keep(start.labels)
    return Assignment(moves.labels, prices)


def _check(costs: Costs, capacity: int) -> None:
    if costs.ndim != 2 or 0 in costs.shape:
        raise ValueError(f"costs: expected (n_points, n_clusters) with no empty axis, got {costs.shape}")
    if not np.isfinite(costs).all():
        raise ValueError("costs: hold NaN or infinity")
    n, k = costs.shape
    if capacity < 1 or capacity * k < n:
        raise ValueError(
            f"capacity: {k} clusters of {capacity} cannot hold {n} points; at least {-(-n // k)} is needed"
        )


def _check_start(start: Assignment, n: int, k: int, capacity: int) -> None:
    labels, prices = start
    if labels.shape != (n,) or labels.min() < 0 or labels.max() >= k:
        raise ValueError(f"start: expected {n} clusters below {k}")
    if np.bincount(labels, minlength=k).max() > capacity:
        raise ValueError(f"start: a cluster holds more than {capacity} points")
    if prices.shape != (k,) or not np.isfinite(prices).all():
        raise ValueError(f"start: expected {k} finite prices")

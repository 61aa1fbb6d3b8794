"""Exact capacity-constrained assignment of many points to few clusters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eldr.core.moves import Labels, Moves

Costs = npt.NDArray[np.floating]


def assign_balanced(costs: Costs, capacity: int, start: Labels | None = None) -> Labels:
    """Assign points to clusters of limited capacity at least total cost.

    Parameters
    ----------
    costs : ndarray of float, shape (n_points, n_clusters)
        Cost of each point in each cluster, finite.
    capacity : int
        Most points per cluster; ``n_clusters * capacity >= n_points``.
    start : ndarray of int, shape (n_points,), optional
        A feasible assignment, such as that of nearly the same costs: it saves most of the work, and is kept if it is optimal.

    Returns
    -------
    ndarray of int, shape (n_points,)
        Cluster of each point. Among several optimal assignments, one of them.

    Raises
    ------
    ValueError
        If the costs are not finite, the points do not fit, or ``start`` is not feasible.

    Notes
    -----
    Without a start, each point takes its cheapest cluster, and the points that are too many move along cheapest chains on a graph of
    ``n_clusters + 1`` nodes. Cancelling negative cycles there makes any feasible assignment optimal.
    """
    _check(costs, capacity)
    n, k = costs.shape
    if start is not None:
        _check_start(start, n, k, capacity)
    exact = costs.astype(np.float64)
    moves = Moves(exact, exact.argmin(axis=1) if start is None else start, capacity)
    moves.relieve()
    moves.cancel()
    if start is not None:
        moves.keep(start)
    return moves.labels


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


def _check_start(labels: Labels, n: int, k: int, capacity: int) -> None:
    if labels.shape != (n,) or labels.min() < 0 or labels.max() >= k:
        raise ValueError(f"start: expected {n} clusters below {k}")
    if np.bincount(labels, minlength=k).max() > capacity:
        raise ValueError(f"start: a cluster holds more than {capacity} points")

"""Exact capacity-constrained assignment of many points to few clusters.

References
----------
.. [1] M. Klein, "A primal method for minimal cost flows", Management Science 14(3), 1967: a flow is optimal exactly
   when its residual network holds no negative cycle. Points of one cluster are interchangeable, so the residual
   network shrinks to one node per cluster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.intp]
Costs = npt.NDArray[np.floating]


def assign_balanced(costs: Costs, capacity: int, start: Labels | None = None) -> Labels:
    """Assign every point to a cluster at least total cost, no cluster above its capacity.

    Parameters
    ----------
    costs : ndarray of float, shape (n_points, n_clusters)
        Cost of each point in each cluster, finite.
    capacity : int
        Most points per cluster; ``n_clusters * capacity >= n_points``.
    start : ndarray of int, shape (n_points,), optional
        A feasible assignment to improve; a near-optimal one (the last iteration's) saves most of the work.

    Returns
    -------
    ndarray of int, shape (n_points,)
        Cluster of each point.

    Raises
    ------
    ValueError
        If the costs are not finite, the points do not fit, or ``start`` is not feasible.

    Notes
    -----
    Cancels negative cycles on a graph of ``n_clusters + 1`` nodes (one for free capacity). Each cancellation costs
    O(n_clusters^3) for the search and O(points of the clusters touched) for the update.
    """
    _check(costs, capacity)
    n, k = costs.shape
    labels = _greedy(costs, capacity) if start is None else _feasible(start, n, k, capacity)
    if k == 1:
        return labels
    moves = _Moves(np.asarray(costs, dtype=np.float64), labels, capacity)
    while (cycle := _negative_cycle(moves.weight, moves.tolerance)) is not None:
        moves.apply(cycle)
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


def _feasible(start: Labels, n: int, k: int, capacity: int) -> Labels:
    if start.shape != (n,) or start.min() < 0 or start.max() >= k:
        raise ValueError(f"start: expected {n} clusters below {k}")
    if np.bincount(start, minlength=k).max() > capacity:
        raise ValueError(f"start: a cluster holds more than {capacity} points")
    return start.astype(np.intp)


def _greedy(costs: Costs, capacity: int) -> Labels:
    """Place the points with most to lose first, each in its cheapest cluster that has room."""
    n, k = costs.shape
    labels = np.full(n, -1, dtype=np.intp)
    room = np.full(k, capacity)
    preference = np.argsort(costs, axis=1, kind="stable")
    if k == 1:
        return np.zeros(n, dtype=np.intp)
    two = np.take_along_axis(costs, preference[:, :2], axis=1)
    for point in np.argsort(two[:, 0] - two[:, 1], kind="stable"):
        for cluster in preference[point]:
            if room[cluster]:
                labels[point] = cluster
                room[cluster] -= 1
                break
    return labels


class _Moves:
    """Cheapest single moves between clusters; node ``k`` stands for free capacity.

    ``weight[a, b]`` is the least change of cost when one point moves from cluster a to b, ``point[a, b]`` is that
    point. Moving "to" the free node ends a chain in a cluster with room, moving "from" it starts one there.
    """

    def __init__(self, costs: npt.NDArray[np.float64], labels: Labels, capacity: int) -> None:
        self.labels = labels.copy()
        self.tolerance = 1e-9 * max(1.0, float(np.abs(costs).max()))
        self._costs = costs
        self._capacity = capacity
        self._k = costs.shape[1]
        self._members = [np.flatnonzero(labels == cluster) for cluster in range(self._k)]
        self.weight = np.full((self._k + 1, self._k + 1), np.inf)
        self._point = np.zeros((self._k + 1, self._k + 1), dtype=np.intp)
        for cluster in range(self._k):
            self._refresh(cluster)

    def _refresh(self, cluster: int) -> None:
        members, k = self._members[cluster], self._k
        self.weight[cluster, k] = 0.0 if members.size < self._capacity else np.inf
        # A chain through the free node starts where a point may leave without a replacement: anywhere it has points.
        self.weight[k, cluster] = 0.0 if members.size else np.inf
        if members.size == 0:
            self.weight[cluster, :k] = np.inf
            return
        gains = self._costs[members] - self._costs[members, cluster][:, None]
        best = gains.argmin(axis=0)
        self.weight[cluster, :k] = gains[best, np.arange(k)]
        self.weight[cluster, cluster] = np.inf
        self._point[cluster, :k] = members[best]

    def apply(self, cycle: list[int]) -> None:
        edges = [(a, b) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True) if self._k not in (a, b)]
        moved = [(int(self._point[a, b]), b) for a, b in edges]
        for point, cluster in moved:
            self.labels[point] = cluster
        for cluster in {node for edge in edges for node in edge}:
            self._members[cluster] = np.flatnonzero(self.labels == cluster)
            self._refresh(cluster)


def _negative_cycle(weight: npt.NDArray[np.float64], tolerance: float) -> list[int] | None:
    """Return the nodes of a negative cycle in edge order, or None (Bellman-Ford from a virtual source)."""
    n = len(weight)
    distance = np.zeros(n)
    parent = np.full(n, -1, dtype=np.intp)
    nodes = np.arange(n)
    for _ in range(n):
        through = distance[:, None] + weight
        best = through.argmin(axis=0)
        shorter = through[best, nodes] < distance - tolerance
        if not shorter.any():
            return None
        parent[shorter] = best[shorter]
        distance[shorter] = through[best, nodes][shorter]
    node = int(np.flatnonzero(shorter)[0])
    for _ in range(n):
        node = int(parent[node])
    cycle = [node]
    while (node := int(parent[node])) != cycle[0]:
        cycle.append(node)
    return cycle[::-1]

"""The residual network of an assignment: the costs of moving points.

References
----------
.. [1] M. Klein, "A primal method for minimal cost flows", Management Science 14(3), 1967: a flow is optimal exactly
   when its residual network holds no negative cycle. Points of one cluster are interchangeable, so the residual
   network shrinks to one node per cluster.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]


class Moves:
    """Cheapest single moves between clusters and free capacity.

    Node ``k`` stands for free capacity.

    ``weight[a, b]`` is the least change of cost when one point moves from cluster a to b, ``_point[a, b]`` is that
    point. Moving "to" the free node ends a chain in a cluster with room, moving "from" it starts one there.

    Parameters
    ----------
    costs : ndarray of float64, shape (n_points, n_clusters)
    labels : ndarray of int, shape (n_points,)
        Clusters may hold more than their capacity until :meth:`relieve`.
    capacity : int
    """

    def __init__(self, costs: Doubles, labels: Labels, capacity: int) -> None:
        self.labels = labels.copy()
        self._tolerance = 1e-9 * max(1.0, float(costs.max()), -float(costs.min()))
        self._costs = np.ascontiguousarray(costs.T)  # one cluster's costs of all points lie side by side
        self._capacity = capacity
        self._k = costs.shape[1]
        order = np.argsort(labels, kind="stable")
        self._members = np.split(order, np.cumsum(np.bincount(labels, minlength=self._k))[:-1])
        self._weight = np.full((self._k + 1, self._k + 1), np.inf)
        self._point = np.full((self._k + 1, self._k + 1), -1, dtype=np.intp)
        for cluster in range(self._k):
            self._find(cluster, np.arange(self._k))
            self._count(cluster)

    def _find(self, cluster: int, targets: npt.NDArray[np.intp]) -> None:
        """Look through all members for the cheapest move to each of ``targets``."""
        members = self._members[cluster]
        if members.size == 0:
            self._weight[cluster, targets] = np.inf
            self._point[cluster, targets] = -1
            return
        gains = self._costs[targets[:, None], members] - self._costs[cluster].take(members)
        best = gains.argmin(axis=1)
        self._weight[cluster, targets] = gains[np.arange(len(targets)), best]
        self._point[cluster, targets] = members[best]
        self._weight[cluster, cluster] = np.inf

    def _count(self, cluster: int) -> None:
        size = self._members[cluster].size
        self._weight[cluster, self._k] = 0.0 if size < self._capacity else np.inf
        # A chain through the free node starts where a point may leave without a replacement: anywhere it has points.
        self._weight[self._k, cluster] = 0.0 if size else np.inf

    def _leave(self, point: int, cluster: int) -> None:
        members = self._members[cluster]
        self._members[cluster] = np.delete(members, np.searchsorted(members, point))
        self._find(cluster, np.flatnonzero(self._point[cluster, : self._k] == point))
        self._count(cluster)

    def _join(self, point: int, cluster: int) -> None:
        members = self._members[cluster]
        self._members[cluster] = np.insert(members, np.searchsorted(members, point), point)
        self.labels[point] = cluster
        gains = self._costs[:, point] - self._costs[cluster, point]
        gains[cluster] = np.inf
        better = np.flatnonzero(gains < self._weight[cluster, : self._k])
        self._weight[cluster, better] = gains[better]
        self._point[cluster, better] = point
        self._count(cluster)

    def relieve(self) -> None:
        """Move points out of clusters that hold too many, at least cost.

        Where every point was in its cheapest cluster, no negative cycle arises.
        """
        while (over := [len(members) > self._capacity for members in self._members]) and any(over):
            self._apply(list(itertools.pairwise(self._chain(np.array([*over, False])))))

    def cancel(self) -> None:
        """Move points along negative cycles until the assignment is optimal."""
        while (cycle := self._negative_cycle()) is not None:
            self._apply(list(itertools.pairwise([*cycle, cycle[0]])))

    def keep(self, labels: Labels) -> None:
        """Go back to another assignment unless this one is better.

        Equal ones would take turns without end.
        """
        points = np.arange(len(labels))
        gain = self._costs[labels, points].sum() - self._costs[self.labels, points].sum()
        if gain <= self._tolerance:
            self.labels = labels

    def _apply(self, edges: list[tuple[int, int]]) -> None:
        moves = [(int(self._point[a, b]), a, b) for a, b in edges if self._k not in (a, b)]
        for point, a, b in moves:
            self._leave(point, a)
            self._join(point, b)

    def _chain(self, sources: npt.NDArray[np.bool_]) -> list[int]:
        """Return the nodes of the cheapest path from any source to the free node (Bellman-Ford)."""
        n, nodes = self._k + 1, np.arange(self._k + 1)
        weight = self._weight[:-1]
        distance = np.where(sources, 0.0, np.inf)
        parent = np.full(n, -1, dtype=np.intp)
        for _ in range(n):
            through = distance[:-1, None] + weight
            best = through.argmin(axis=0)
            candidates = through[best, nodes]
            shorter = candidates < distance - self._tolerance
            if not shorter.any():
                break
            parent[shorter] = best[shorter]
            distance[shorter] = candidates[shorter]
        path = [self._k]
        while (node := int(parent[path[-1]])) >= 0 and node not in path:
            path.append(node)
        return path[::-1]

    def _negative_cycle(self) -> list[int] | None:
        """Return the nodes of a negative cycle in edge order, or None (Bellman-Ford from a virtual source)."""
        n = len(self._weight)
        distance = np.zeros(n)
        parent = np.full(n, -1, dtype=np.intp)
        nodes = np.arange(n)
        for _ in range(n):
            through = distance[:, None] + self._weight
            best = through.argmin(axis=0)
            shorter = through[best, nodes] < distance - self._tolerance
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

"""Balanced spherical K-means: one centroid per decode worker, equal shares of the calibration requests.

References
----------
.. [1] ELDR, arXiv 2607.00466: cosine K-means with k-means++ seeding whose every assignment is optimal under the
   capacity ``ceil(N / K)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from eldr.core.assignment import Labels, assign_balanced
from eldr.core.signature import TINY, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Clustering:
    """Result of a K-means run.

    Attributes
    ----------
    centers : ndarray of float32, shape (n_clusters, n_features)
        Unit rows.
    labels : ndarray of int, shape (n_points,)
    inertia : float
        Sum of ``1 - cosine`` of each point to its centre.
    n_iter : int
        Iterations until nothing changed, or ``max_iter``.
    """

    centers: Floats
    labels: Labels
    inertia: float
    n_iter: int


def balanced_kmeans(
    points: Floats, n_clusters: int, rng: np.random.Generator, *, restarts: int = 1, max_iter: int = 50
) -> Clustering:
    """Cluster unit vectors into equal shares.

    Parameters
    ----------
    points : ndarray of float32, shape (n_points, n_features)
        Unit rows; at least ``n_clusters`` of them.
    n_clusters : int
    rng : numpy.random.Generator
    restarts : int
        Seedings to try; the least inertia wins.
    max_iter : int

    Returns
    -------
    Clustering
        No cluster holds more than ``ceil(n_points / n_clusters)`` points.

    Raises
    ------
    ValueError
        If there are fewer points than clusters, or a point is not a unit vector (drop all-zero signatures first).

    Notes
    -----
    Each iteration lowers the inertia: the assignment is optimal for the centres, and the normalised mean is the best
    centre for its members. Centres of duplicate points may coincide; they then share the load of those requests.
    """
    _check_points(points, n_clusters)
    runs = (_run(points, _seed(points, n_clusters, rng), max_iter) for _ in range(max(1, restarts)))
    return min(runs, key=lambda run: run.inertia)


def _check_points(points: Floats, n_clusters: int) -> None:
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(f"points: expected (n_points, n_features) with no empty axis, got {points.shape}")
    if n_clusters < 1:
        raise ValueError(f"n_clusters: expected at least 1, got {n_clusters}")
    if len(points) < n_clusters:
        raise ValueError(f"{len(points)} points cannot fill {n_clusters} clusters; collect more samples")
    norms = np.linalg.norm(points, axis=1)
    if not np.isfinite(norms).all() or np.abs(norms - 1.0).max() > 1e-3:
        bad = int(np.argmax(~(np.abs(norms - 1.0) <= 1e-3)))
        raise ValueError(
            f"points: row {bad} has length {norms[bad]}, expected unit vectors; drop all-zero signatures"
        )


def _seed(points: Floats, n_clusters: int, rng: np.random.Generator) -> Floats:
    """Choose initial centres by k-means++ (squared Euclidean distance of unit vectors is twice 1 - cosine)."""
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(n_clusters - 1):
        distance = np.minimum(distance, np.maximum(0.0, 1.0 - points @ points[chosen[-1]]))
        total = float(distance.sum())
        # All remaining points coincide with a centre: any point is as good as another.
        chosen.append(
            int(rng.choice(len(points), p=distance / total)) if total > 0 else int(rng.integers(len(points)))
        )
    return points[chosen].copy()


def _run(points: Floats, centers: Floats, max_iter: int) -> Clustering:
    k = len(centers)
    capacity = -(-len(points) // k)
    labels: Labels | None = None
    n_iter = 0
    while n_iter < max(1, max_iter):
        n_iter += 1
        similarity = points @ centers.T
        assigned = assign_balanced(1.0 - similarity, capacity, labels)
        if labels is not None and np.array_equal(assigned, labels):
            break
        labels = assigned
        centers = _update(points, labels, centers)
    assert labels is not None  # noqa: S101 - max_iter >= 1
    inertia = float((1.0 - np.einsum("nd,nd->n", points, centers[labels])).sum())
    return Clustering(centers=centers, labels=labels, inertia=inertia, n_iter=n_iter)


def _update(points: Floats, labels: Labels, old: Floats) -> Floats:
    centers = old.copy()
    for cluster in range(len(old)):
        members = points[labels == cluster]
        if len(members):
            mean = members.mean(axis=0)
            norm = np.linalg.norm(mean)
            # Opposite members cancel out; an empty cluster has none. Both keep the old centre.
            if norm > TINY:
                centers[cluster] = mean / norm
    return centers


def align(new: Floats, old: Floats) -> npt.NDArray[np.intp]:
    """Order new centres so that each takes the slot of the old one it resembles most.

    Parameters
    ----------
    new : ndarray of float32, shape (k_new, n_features)
    old : ndarray of float32, shape (k_old, n_features)

    Returns
    -------
    ndarray of int, shape (k_new,)
        ``new[order]`` is aligned: a permutation that maximises the sum of cosines over the shared slots; centres
        without a counterpart fill the slots left over, in order.
    """
    rows, columns = linear_sum_assignment(-(new @ old.T))
    order = np.full(len(new), -1, dtype=np.intp)
    for centre, slot in zip(rows, columns, strict=True):
        if slot < len(new):
            order[slot] = centre
    left = iter(sorted(set(range(len(new))) - set(order[order >= 0].tolist())))
    for slot in np.flatnonzero(order < 0):
        order[slot] = next(left)
    return order

"""Balanced spherical K-means: clusters of equal size.

Each decode engine gets one centroid, and each centroid an equal share of the calibration requests.

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
from scipy.sparse import csr_array

from eldr.core.assignment import assign_balanced
from eldr.core.moves import Labels
from eldr.core.signature import TINY, Floats

_CHUNK = 4096  # points at a time, so that no second copy of them all is made


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
    seeds = _seeds(points, n_clusters, rng, max(1, restarts))
    runs = (from_centers(points, points[chosen], max_iter) for chosen in seeds)
    return min(runs, key=lambda run: run.inertia)


def _check_points(points: Floats, n_clusters: int) -> None:
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(f"points: expected (n_points, n_features) with no empty axis, got {points.shape}")
    if n_clusters < 1:
        raise ValueError(f"n_clusters: expected at least 1, got {n_clusters}")
    if len(points) < n_clusters:
        raise ValueError(f"{len(points)} points cannot fill {n_clusters} clusters; collect more samples")
    norms = np.sqrt(np.vecdot(points, points))
    if not np.isfinite(norms).all() or np.abs(norms - 1.0).max() > 1e-3:
        bad = int(np.argmax(~(np.abs(norms - 1.0) <= 1e-3)))
        raise ValueError(
            f"points: row {bad} has length {norms[bad]}, expected unit vectors; drop all-zero signatures"
        )


def _seeds(points: Floats, n_clusters: int, rng: np.random.Generator, restarts: int) -> npt.NDArray[np.intp]:
    """Choose initial centres by k-means++ (squared Euclidean distance of unit vectors is twice 1 - cosine).

    Returns
    -------
    ndarray of int, shape (restarts, n_clusters)
        Points. All restarts are chosen side by side, so that the points are read once per centre and not once for each.
    """
    n = len(points)
    chosen = np.empty((restarts, n_clusters), dtype=np.intp)
    draws = np.empty((restarts, n_clusters - 1))
    for run in range(restarts):  # one restart's numbers after the other's
        chosen[run, 0] = rng.integers(n)
        draws[run] = rng.random(n_clusters - 1)
    distance = np.full((restarts, n), np.inf)
    for nth in range(1, n_clusters):
        cosine = points[chosen[:, nth - 1]] @ points.T
        np.minimum(distance, np.maximum(0.0, 1.0 - cosine), out=distance)
        for run in range(restarts):
            total = float(distance[run].sum())
            # All remaining points coincide with a centre: any point is as good as another.
            odds = distance[run] / total if total > 0 else np.full(n, 1.0 / n)
            reached = odds.cumsum()
            chosen[run, nth] = (reached / reached[-1]).searchsorted(draws[run, nth - 1], side="right")
    return chosen


def from_centers(points: Floats, centers: Floats, max_iter: int) -> Clustering:
    """Go on from given centres.

    It does not check again what :func:`balanced_kmeans` demands of points.
    """
    k = len(centers)
    capacity = -(-len(points) // k)
    labels: Labels | None = None
    n_iter = 0
    while n_iter < max(1, max_iter):
        n_iter += 1
        before = labels
        labels = assign_balanced(1.0 - points @ centers.T, capacity, before)
        if before is not None and np.array_equal(labels, before):
            break
        centers = _update(points, labels, centers)
    assert labels is not None  # noqa: S101 - max_iter >= 1
    cosines = np.empty(len(points), dtype=np.float32)
    for at in range(0, len(points), _CHUNK):
        part = slice(at, at + _CHUNK)
        cosines[part] = np.einsum("nd,nd->n", points[part], centers[labels[part]])
    return Clustering(centers=centers, labels=labels, inertia=float((1.0 - cosines).sum()), n_iter=n_iter)


def _update(points: Floats, labels: Labels, old: Floats) -> Floats:
    """Return the normalised means of the members."""
    sizes = np.bincount(labels, minlength=len(old))
    # Members are summed where they lie: gathering them would copy all points in every iteration.
    members = np.argsort(labels, kind="stable")
    ones = np.ones(len(points), dtype=np.float32)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    sums = csr_array((ones, members, ends), shape=(len(old), len(points))) @ points
    centers = old.copy()
    for cluster in np.flatnonzero(sizes):
        mean = sums[cluster] / np.float32(sizes[cluster])
        norm = np.linalg.norm(mean)
        # Opposite members cancel out; an empty cluster has none. Both keep the old centre.
        if norm > TINY:
            centers[cluster] = mean / norm
    return centers


def align(new: Floats, old: Floats) -> npt.NDArray[np.intp]:
    """Give each new centre the slot of the old one that it resembles most.

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

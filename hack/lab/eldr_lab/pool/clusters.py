"""Clusters of a K-means that does not balance them: a baseline of the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.signature import TINY, Floats, signatures
from eldr.fit.samples import Samples

_ITERATIONS = 50


def vanilla(centroids: CentroidSet, samples: Samples, seed: int) -> CentroidSet:
    """Return centroids of plain spherical K-means on the same signatures.

    Parameters
    ----------
    centroids : CentroidSet
        Says how signatures are made, and how many clusters.
    samples : Samples
    seed : int
    """
    points = signatures(samples.prefill, centroids.full_weights(), centroids.layer_mask)
    points = points[np.linalg.norm(points, axis=1) > 0.5]
    seeds = _seeds(points, centroids.k, np.random.default_rng([seed, 4]))
    return replace(centroids, centers=nearest_means(points, seeds))


def nearest_means(points: Floats, centers: Floats) -> Floats:
    """Return the centres that plain K-means makes of given ones.

    Parameters
    ----------
    points : ndarray of float32, shape (n_points, n_features)
        Unit rows.
    centers : ndarray of float32, shape (n_clusters, n_features)
    """
    centers = centers.copy()
    labels = np.full(len(points), -1)
    for _ in range(_ITERATIONS):
        nearest = np.argmax(points @ centers.T, axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for cluster in range(len(centers)):
            mean = points[labels == cluster].sum(axis=0)
            norm = np.linalg.norm(mean)
            if norm > TINY:  # an empty cluster keeps its centre
                centers[cluster] = mean / norm
    return centers


def _seeds(points: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Choose k-means++ centres."""
    chosen = [int(rng.integers(len(points)))]
    while len(chosen) < k:
        distance = np.maximum(0.0, 1.0 - (points @ points[chosen].T).max(axis=1)).astype(np.float64)
        total = distance.sum()
        weights = distance / total if total > 0 else None
        chosen.append(int(rng.choice(len(points), p=weights)))
    return points[chosen].copy()

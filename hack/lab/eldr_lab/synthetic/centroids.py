"""Centroids for a simulated pool, fitted by ``eldr fit``'s own code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from eldr.centroids import CentroidSet
from eldr.core.signature import Floats, signatures
from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import Samples

MODEL = "simulated"


def fitted(samples: Samples, k: int, seed: int) -> CentroidSet:
    """Fit balanced centroids, one per engine; FitError if the samples cannot carry them."""
    return fit(samples, FitSettings(k=k, model=MODEL, seed=seed), now=0.0).centroids


def similarities(centroids: CentroidSet, counts: npt.NDArray[np.unsignedinteger[Any]]) -> Floats:
    """Return the cosine of every request to every centroid, shape (n_records, k)."""
    scores: Floats = signatures(counts, centroids.full_weights(), centroids.layer_mask) @ centroids.centers.T
    return scores

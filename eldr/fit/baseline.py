"""What a fit expects of traffic like its own.

Live traffic is compared with it later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from eldr.contract import SIMILARITY_BINS
from eldr.core.halves import Interval
from eldr.core.signature import Floats
from eldr.core.similarity_bins import similarity_bin


class Baseline(NamedTuple):
    """Held-out records with a signature, counted by similarity.

    See :data:`eldr.contract.REPORT_KEY`.

    Attributes
    ----------
    similarity : list of int, length SIMILARITY_BINS
        Records by their best cosine.
    clusters : list of int, length k
        Records by the most similar slot.
    """

    similarity: list[int]
    clusters: list[int]

    @property
    def requests(self) -> int:
        """Records counted."""
        return sum(self.clusters)

    @property
    def counts(self) -> dict[str, Any]:
        """The counts as JSON has them."""
        return {"similarity": self.similarity, "clusters": self.clusters, "requests": self.requests}

    def as_json(
        self, saving: Interval | None, batch: float | None, before: Baseline | None = None
    ) -> dict[str, Any]:
        """Return the report's object, with the predicted saving."""
        value, low, high = saving or (None, None, None)
        return self.counts | {
            "saving": value,
            "saving_low": low,
            "saving_high": high,
            "batch": batch,
            "before": before and before.counts,
        }


def measure_baseline(similarity: Floats) -> Baseline | None:
    """Count records by how and where they fit best; None without any.

    Parameters
    ----------
    similarity : ndarray of float32, shape (n_requests, k)
        Cosines of records to every centroid; rows of zeros are records without a preference.
    """
    known = similarity[similarity.any(axis=1)]
    if not len(known):
        return None
    bins = [similarity_bin(best) for best in known.max(axis=1).tolist()]
    clusters = np.bincount(known.argmax(axis=1), minlength=similarity.shape[1])
    return Baseline(np.bincount(bins, minlength=SIMILARITY_BINS).tolist(), clusters.tolist())

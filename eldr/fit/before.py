"""Traffic before the change that a fit is for.

It may return, and then the set before serves it better.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from eldr.centroids import CentroidSet
from eldr.fit.baseline import Baseline, measure_baseline
from eldr.fit.evaluation import similarities_to
from eldr.fit.samples import FitError, make_samples, unusable
from eldr.siglog import Record

_MOST = 500


class Older:
    """Records as they come, and apart, older ones near a time.

    Just before a change was noticed there may have been some of the new traffic already; about when the active set was fitted
    there was what it was fitted for.

    Parameters
    ----------
    records : iterable of Record
    until : float or None
        Unix time; None puts nothing aside.
    near : float
        Unix time.
    model : str
        Records of other models are left out.
    """

    def __init__(self, records: Iterable[Record], *, until: float | None, near: float, model: str) -> None:
        self._records = records
        self._until = until
        self._near = near
        self._model = model
        self._numbers = itertools.count()
        self._kept: list[tuple[float, int, Record]] = []

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            if (
                self._until is not None
                and record.time < self._until
                and unusable(record, self._model) is None
            ):
                one = (-abs(record.time - self._near), next(self._numbers), record)
                if len(self._kept) < _MOST:
                    heapq.heappush(self._kept, one)
                else:
                    heapq.heappushpop(self._kept, one)
            yield record

    def baseline(self, centroids: CentroidSet) -> Baseline | None:
        """Count how these records look to a set; None where none is usable."""
        try:
            samples = make_samples([record for _, _, record in self._kept], Counter())
        except FitError:
            return None
        if samples.prefill.shape[1:] != (centroids.n_layers, centroids.n_experts):
            return None
        return measure_baseline(similarities_to(samples, np.arange(len(samples)), centroids, centroids.k))

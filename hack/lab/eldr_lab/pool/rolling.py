"""Centroids that a router re-fits while it runs, on the prompts of the last seconds.

References
----------
.. [1] ELDR's artifact (casys-kaist/ELDR): a window of 5 s, a fit every 2.5 s, from the centroids in use, once the window is full and
   holds as many signatures as there are centroids. There a fit takes its time in the background; here it takes none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.clustering import from_centers
from eldr.core.signature import Floats, signatures
from eldr_lab.pool.clusters import nearest_means
from eldr_lab.synthetic.population import Population

_ITERATIONS = 50


@dataclass(frozen=True, slots=True, eq=False)
class Refits:
    """What re-fits work on.

    Attributes
    ----------
    points : ndarray of float32, shape (n_records, n_features)
        Signatures; unit rows, or zero.
    centers : ndarray of float32, shape (n_engines, n_features)
        The first ones.
    every, window : float
        Seconds.
    balanced : bool
        Whether clusters are equal shares.
    """

    points: Floats
    centers: Floats
    every: float
    window: float
    balanced: bool


def refits(
    centroids: CentroidSet, seen: Population, *, every: float, window: float, balanced: bool
) -> Refits:
    """Return re-fits that begin with a centroid set and keep its layers and weights."""
    points = signatures(seen.prefill, centroids.full_weights(), centroids.layer_mask)
    return Refits(points, centroids.centers, every, window, balanced)


class Rolling:
    """The centroids of one router.

    Parameters
    ----------
    refits : Refits
    """

    def __init__(self, refits: Refits) -> None:
        self._refits = refits
        self._centers = refits.centers
        self._known = frozenset(np.flatnonzero(refits.points.any(axis=1)).tolist())
        self._window: deque[tuple[float, int]] = deque()
        self._due = refits.window
        self.fits = 0

    def similarity(self, record: int, now: float) -> list[float]:
        """Return a request's cosine to every centroid, and remember the request.

        Parameters
        ----------
        record : int
        now : float
            Never before that of an earlier call, seconds.
        """
        if now >= self._due:
            self._fit()
            self._due += self._refits.every * (1 + (now - self._due) // self._refits.every)
        scores: list[float] = (self._centers @ self._refits.points[record]).tolist()
        if record in self._known:
            self._window.append((now, record))
        return scores

    def _fit(self) -> None:
        """Fit on what came in the window before a fit was due."""
        begin = self._due - self._refits.window
        while self._window and self._window[0][0] < begin:
            self._window.popleft()
        if len(self._window) < len(self._centers):
            return
        points = self._refits.points[np.array([record for _, record in self._window])]
        if self._refits.balanced:
            self._centers = from_centers(points, self._centers, _ITERATIONS).centers
        else:
            self._centers = nearest_means(points, self._centers)
        self.fits += 1

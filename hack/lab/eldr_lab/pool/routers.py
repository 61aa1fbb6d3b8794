"""Routers that share a pool and hear of each other late, and routers that refit their own centroids."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.clustering import from_centers
from eldr.core.policy import Policy
from eldr.core.profiles import Learned, Profiles
from eldr.core.signature import Floats, signatures
from eldr.core.tolls import Tolls
from eldr.simulate.routing import Placement
from eldr_lab.synthetic import routers as routing
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Knowledge

_ITERATIONS = 50


class Rolling:
    """Centroids that a router fits anew while it runs, on the prompts of the last seconds.

    As ELDR's artifact (casys-kaist/ELDR) does: from the centroids in use, once the window, twice the time between fits, is full and
    holds as many signatures as there are centroids. There a fit takes its time in the background; here it takes none.

    Parameters
    ----------
    centroids : CentroidSet
        The first ones, which say how signatures are made.
    seen : Population
    every : float
        Seconds between fits.
    """

    def __init__(self, centroids: CentroidSet, seen: Population, every: float) -> None:
        self._points = signatures(seen.prefill, centroids.full_weights(), centroids.layer_mask)
        self._centers = centroids.centers
        self._known = frozenset(np.flatnonzero(self._points.any(axis=1)).tolist())
        self._window: deque[tuple[float, int]] = deque()
        self._every, self._due = every, 2 * every
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
            self._due += self._every * (1 + (now - self._due) // self._every)
        scores: list[float] = (self._centers @ self._points[record]).tolist()
        if record in self._known:
            self._window.append((now, record))
        return scores

    def _fit(self) -> None:
        """Fit on what came in the window before a fit was due."""
        begin = self._due - 2 * self._every
        while self._window and self._window[0][0] < begin:
            self._window.popleft()
        if len(self._window) >= len(self._centers):
            points = self._points[np.array([record for _, record in self._window])]
            self._centers = from_centers(points, self._centers, _ITERATIONS).centers
            self.fits += 1


class Router(routing.Router):
    """One of several routers; it believes what the others tell of their requests.

    Parameters
    ----------
    name, policy, knowledge, seed
        As of :class:`eldr.simulate.routing.Router`.
    joins : sequence of (int, float)
        Engines that are not there from the start, and when each comes, seconds.
    restarts : float
        When it forgets its tolls and what it learned of engines, seconds.
    rolling : Rolling, optional
        In place of the centroids that it knows.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        knowledge: Knowledge,
        seed: int,
        *,
        joins: Sequence[tuple[int, float]] = (),
        restarts: float = math.inf,
        rolling: Rolling | None = None,
    ) -> None:
        super().__init__(name, policy, knowledge, seed)
        self._told = [0] * len(knowledge.step_times)
        self._heard = False
        self._told_until = 0
        self._joins, self._restarts, self._rolling = joins, restarts, rolling

    @property
    def fits(self) -> int:
        """How often it has refitted its centroids."""
        return 0 if self._rolling is None else self._rolling.fits

    def place(self, record: int, now: float) -> Placement:
        """Choose an engine for a request, and count it there."""
        if now >= self._restarts:
            self._restarts = math.inf
            self._tolls = Tolls()
            if self._profiles is not None and self._unions is not None:
                self._profiles = Profiles(self._unions.shape.cells)
        return super().place(record, now)

    def table(self) -> dict[str, tuple[int, Floats]]:
        """Return what this router tells others of the experts of its requests."""
        return {} if self._unions is None else self._unions.table()

    def learned(self) -> dict[str, Learned]:
        """Return what this router tells others that it has learned of engines since it last told."""
        return {} if self._profiles is None else self._profiles.table(self._told_until)

    def has_told(self) -> None:
        """Take note that everybody has heard."""
        self._told_until = 0 if self._unions is None else self._unions.version

    def hear(self, others: Sequence[Router]) -> None:
        """Take what all other routers say of their own requests now."""
        self._heard = True
        self._told = [sum(column) for column in zip(*(other.in_flight for other in others), strict=True)]
        if self._unions is not None:
            for other in others:
                self._unions.merge(other.name, other.table())
        if self._profiles is not None:
            for other in others:
                self._profiles.merge(other.name, other.learned())

    def _slots(self, now: float) -> Sequence[int]:
        missing = {slot for slot, comes in self._joins if comes > now}
        slots = super()._slots(now)
        return [slot for slot in slots if slot not in missing] if missing else slots

    def _loads(self) -> Sequence[int]:
        if not self._heard:
            return self._own
        return [own + told for own, told in zip(self._own, self._told, strict=True)]

    def _similarity(self, record: int, now: float) -> Sequence[float] | None:
        if self._rolling is not None:
            return self._rolling.similarity(record, now)
        return super()._similarity(record, now)


def exchange(routers: Sequence[Router]) -> None:
    """Let routers tell each other what each of them placed."""
    for router in routers:
        router.hear([other for other in routers if other is not router])
    for router in routers:
        router.has_told()

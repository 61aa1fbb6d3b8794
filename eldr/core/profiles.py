"""Profiles of engines: centroids that a router learns as it places.

Each request moves the profile of the engine that the prior favours for it, tolls taken off, a little towards its own signature. That is the
fit's own clustering under capacity, one request at a time: profiles are its means, and tolls keep the shares equal. A young profile learns from what
its engine is sent instead, and so begins with what runs there: a router that restarts finds batches that are sorted already.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.signature import TINY, Floats

LOOK = 60
"""Signatures that a profile looks back on: a kind that moves to another engine is followed within some dozens of requests."""
START = 3
"""Signatures that a new engine's start counts as: a few of its own, and it stands for a kind."""
YOUNG = 12
"""Signatures up to which a profile learns from what its engine is sent."""
_MEMORY = 1000  # signatures that the pool's mean looks back on
_TELL = 8


class Learned(NamedTuple):
    """What one router learned of one engine.

    Attributes
    ----------
    seen : int
        Signatures, ever since the router's profiles began.
    mean : ndarray of float32, shape (cells,)
        Their running mean over :data:`LOOK`; each is a unit vector.
    """

    seen: int
    mean: Floats


class Profiles:
    """The profiles of a pool's engines, as one router knows them.

    An engine of which nothing was learned yet looks like the pool's mean: less like any request than the engine that stands for its
    kind, and more so than those that stand for another one. So it is neither avoided nor flooded, and its toll does the rest.

    Parameters
    ----------
    cells : int
        Of a signature: layers that are looked at, times experts.
    look, start : int
        As :data:`LOOK` and :data:`START`.

    Notes
    -----
    What other routers learned is taken in by how many signatures that is more than in their last report. A router without traffic
    thereby holds no other back, and one that has just begun takes over what the others know.
    """

    def __init__(self, cells: int, look: int = LOOK, start: int = START) -> None:
        self._cells, self._look, self._start = cells, look, start
        self._pool = np.zeros(cells, dtype=np.float32)
        self._seen = 0
        self._rows: dict[str, int] = {}
        self._known = np.zeros((0, cells), dtype=np.float32)  # means over all routers
        self._weight: list[float] = []  # signatures that each of them stands for; 0: none yet
        self._scale = np.zeros(0, dtype=np.float32)  # inverse lengths
        self._own: dict[str, Learned] = {}
        self._changed: dict[str, int] = {}
        self._merged: dict[tuple[str, str], int] = {}
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)

    def similarity(self, share: Floats, engines: Sequence[str]) -> list[float] | None:
        """Return a request's cosine to each engine's profile.

        None while nothing is known, or for a request without experts.

        Parameters
        ----------
        share : ndarray of float32, shape (cells,)
            Its experts, in any unit: only the direction counts.
        engines : sequence of str
        """
        norm = math.sqrt(share.dot(share))
        if norm <= TINY or not self._seen:
            return None
        like_pool = float(self._pool.dot(share)) / (norm * math.sqrt(self._pool.dot(self._pool)))
        known = self._known.dot(share)
        known *= self._scale
        cosines = known.tolist()
        rows, weight = self._rows, self._weight
        known_rows = [rows.get(engine, -1) for engine in engines]
        return [cosines[row] / norm if row >= 0 and weight[row] else like_pool for row in known_rows]

    def numbers(self, engines: Sequence[str]) -> list[int]:
        """Return a number for each engine, for its toll.

        No other engine ever gets it, also where an engine returns.
        """
        numbers = self._numbers
        return [numbers[engine] for engine in engines]

    def learn(self, favourite: str | None, sent: str, share: Floats, version: int = 0) -> None:
        """Learn from a request.

        Parameters
        ----------
        favourite : str, optional
            The engine that the prior favours for it, see :meth:`eldr.core.tolls.Tolls.settle`.
        sent : str
            The one that it goes to.
        share : ndarray of float32
        version : int
            Of the reported tables, see :meth:`table`.
        """
        if favourite is None or self._weight_of(sent) < YOUNG:
            favourite = sent
        self.take(favourite, share, version)

    def take(self, engine: str, share: Floats, version: int = 0) -> None:
        """Move an engine's profile towards a request."""
        norm = math.sqrt(share.dot(share))
        if norm <= TINY:
            return
        signature = share / np.float32(norm)
        self._take(engine, signature, 1)
        before = self._own.get(engine)
        if before is None:
            self._own[engine] = Learned(1, signature)
        else:
            count = before.seen + 1
            signature -= before.mean
            signature /= min(count, self._look)
            self._own[engine] = Learned(count, before.mean + signature)
            if count > _TELL and count % _TELL:
                return
        self._changed[engine] = version

    def table(self, since: int = -1) -> dict[str, Learned]:
        """Return the profiles that changed since a version.

        Every eighth signature counts as a change.
        """
        return {engine: learned for engine, learned in self._own.items() if self._changed[engine] > since}

    def merge(self, router: str, table: Mapping[str, Learned]) -> None:
        """Merge what another router has learned."""
        for engine, (count, mean) in table.items():
            key = router, engine
            before = self._merged.get(key, 0)
            # one that reports fewer has forgotten the engine meanwhile, and begun again
            new = count - before if count >= before else count
            self._merged[key] = count
            if new:
                self._take(engine, mean, new)

    def forget(self, router: str) -> None:
        """Forget a router that is gone, not what it learned."""
        for key in [key for key in self._merged if key[0] == router]:
            del self._merged[key]

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        for engine in self._rows.keys() - set(engines):
            self._weight[self._rows.pop(engine)] = 0.0
        for engine in self._numbers.keys() - set(engines):
            del self._numbers[engine]
        for engine in self._own.keys() - set(engines):
            del self._own[engine], self._changed[engine]
        for key in [key for key in self._merged if key[1] not in engines]:
            del self._merged[key]

    def _take(self, engine: str, mean: Floats, count: int) -> None:
        self._seen += count
        self._pool += (mean - self._pool) * min(1.0, count / min(self._seen, _MEMORY))
        row = self._row(engine)
        known, weight = self._known[row], self._weight[row]
        if not weight:
            known[:] = self._pool
            weight = float(self._start)
        count = min(count, self._look)
        weight = min(weight + count, float(self._look))
        known += (mean - known) * (count / weight)
        self._weight[row] = weight
        self._scale[row] = 1.0 / math.sqrt(known.dot(known))

    def _weight_of(self, engine: str) -> float:
        row = self._rows.get(engine)
        return 0.0 if row is None else self._weight[row]

    def _row(self, engine: str) -> int:
        row = self._rows.get(engine)
        if row is None:
            free = set(range(len(self._weight))).difference(self._rows.values())
            if not free:
                self._known = np.vstack([self._known, np.zeros((1, self._cells), dtype=np.float32)])
                self._scale = np.append(self._scale, np.float32(0.0))
                self._weight.append(0.0)
                free = {len(self._weight) - 1}
            row = self._rows[engine] = min(free)
        return row

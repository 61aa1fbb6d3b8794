"""How fast the machine is at the moment."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

_FIRST = 25
_EVERY = 6
_LATEST = 3


class Pace:
    """Turns seconds on a machine whose speed changes into seconds at one speed.

    Parameters
    ----------
    reference : callable
        Does work that is always the same, and returns the seconds that it took.
    usual : float, optional
        Seconds that it takes at the speed at which times are told; None: what it takes at first.
    """

    def __init__(self, reference: Callable[[], float], usual: float | None = None) -> None:
        self._reference = reference
        for _ in range(3):  # the first ones fill caches
            reference()
        self.usual = usual or statistics.median(reference() for _ in range(_FIRST))
        self._latest = deque([self.usual] * _LATEST, maxlen=_LATEST)
        self._asked = 0
        self.factors: list[float] = []
        """Times as slow as usual, over the run."""

    def __call__(self, seconds: float) -> float:
        """Return what they would have been at the usual speed."""
        if self._asked % _EVERY == 0:
            self._latest.append(self._reference())
            self.factors.append(statistics.median(self._latest) / self.usual)
        self._asked += 1
        return seconds / self.factors[-1]

"""Backoff before a retry. Pure: chance is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Waits that double from one failure to the next.

    Each one is spread over its upper half: what failed together (every router, when the API server restarts) must not
    come back together.

    Parameters
    ----------
    first, most : float
        Bounds of the wait, seconds.
    draw : callable
        Returns a number in [0, 1).
    """

    first: float
    most: float
    draw: Callable[[], float]
    failures: int = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait."""
        wait = min(self.most, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return wait * (0.5 + 0.5 * self.draw())

    def worked(self) -> None:
        """Begin anew: what is tried works again."""
        self.failures = 0

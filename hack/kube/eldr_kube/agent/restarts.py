"""Whether and when a container starts again. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["Always", "OnFailure", "Never"]
LIMIT_SECONDS = 300.0


def restarts_after(policy: Policy, exit_code: int) -> bool:
    """Tell whether a container that ended starts again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


@dataclass(slots=True)
class Backoff:
    """The kubelet's delays: none before the first restart, then ``base`` seconds, doubling up to five minutes.

    Parameters
    ----------
    base : float
        Second delay, seconds.
    """

    base: float = 10.0
    _next: float = 0.0

    def after(self, lived: float) -> float:
        """Return the delay before the next restart of a container that ran for ``lived`` seconds."""
        # A run of twice the longest delay counts as healthy: the row starts anew.
        if lived > 2 * LIMIT_SECONDS:
            self._next = 0.0
        delay = self._next
        self._next = min(LIMIT_SECONDS, 2 * delay or self.base)
        return delay

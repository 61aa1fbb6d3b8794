"""What placement saves now: active experts of the engines' steps against random batches of the same sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from eldr.contract import BATCH_BUCKETS
from eldr.core.saving import Batches, Saving, random_unions, saving
from eldr.wire import ExpertCounts

_KEPT_SECONDS = 300.0
_MOST_REQUESTS = 256
_LEAST_TOKENS = 1000
"""Of finished requests: below it, which experts the traffic uses is not known well enough."""
_MOST_WINDOWS = 4096


class Savings:
    """Telemetry of the last minutes, and what it amounts to.

    Attributes
    ----------
    latest : Saving or None
        As of the last update; None while too little is known.
    placement : tuple
        Policy and epoch by which requests are placed.
    """

    def __init__(self) -> None:
        self.latest: Saving | None = None
        self._finished: deque[tuple[float, ExpertCounts]] = deque(maxlen=_MOST_REQUESTS)
        self._totals: dict[str, Batches] = {}
        self._windows: deque[tuple[float, Batches]] = deque(maxlen=_MOST_WINDOWS)
        self.placement: tuple[str, int] = ("", 0)

    def follow(self, policy: str, epoch: int) -> None:
        """Begin anew where requests are placed otherwise from now on; which experts the traffic uses stays known."""
        if (policy, epoch) != self.placement:
            self.placement = (policy, epoch)
            self._windows.clear()
            self._totals.clear()
            self.latest = None

    def finished(self, counts: ExpertCounts, now: float) -> None:
        """Take the activations of a finished request; those of another model than before replace all."""
        if self._finished and self._finished[-1][1].shape != counts.shape:
            self._finished.clear()
            self._windows.clear()
        if counts.tokens:
            self._finished.append((now, counts))

    def heard(self, engine: str, steps: Batches, now: float) -> None:
        """Take an engine's totals."""
        before = self._totals.get(engine)
        self._totals[engine] = steps
        if before is None:
            return
        sizes = tuple(new - old for new, old in zip(steps.sizes, before.sizes, strict=True))
        active = steps.active - before.active
        # an engine that began anew counts from zero
        if min(sizes) >= 0.0 and active >= 0.0 and sum(sizes) > 0.0:
            self._windows.append((now, Batches(active, sizes)))

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone; what they did stays."""
        for engine in self._totals.keys() - set(engines):
            del self._totals[engine]

    def prepare(self, now: float) -> Callable[[], Saving | None]:
        """Return the work of an update, which may be done in another thread; its result is for :attr:`latest`."""
        since = now - _KEPT_SECONDS
        counts = [found for at, found in self._finished if at >= since]
        windows = [found for at, found in self._windows if at >= since]

        def work() -> Saving | None:
            tokens = sum(found.tokens for found in counts)
            if tokens < _LEAST_TOKENS or not windows:
                return None
            chosen = np.zeros(counts[0].shape)
            for found in counts:
                chosen += found.counts
            return saving(windows, random_unions(chosen / tokens, BATCH_BUCKETS), BATCH_BUCKETS)

        return work

"""What placement saves now, against random batches of equal sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from eldr.contract import BATCH_BUCKETS
from eldr.core.random_batches import Mix
from eldr.core.saving import Batches, Saving, fed_per_request, saving
from eldr.wire import ExpertCounts

_KEPT_SECONDS = 300.0
_MOST_REQUESTS = 256
_LEAST_REQUESTS = 64
"""Below it, which experts the traffic uses is not known well enough; where so many did not finish lately, older ones count too."""
_OLDEST_SECONDS = 3600.0
_MOST_GROUPS = 32
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
        self._windows: deque[tuple[float, str, Batches]] = deque(maxlen=_MOST_WINDOWS)
        self.placement: tuple[str, int] = ("", 0)

    def follow(self, policy: str, epoch: int) -> None:
        """Begin anew where policy or epoch changed.

        Which experts the traffic uses stays known.
        """
        if (policy, epoch) != self.placement:
            self.placement = (policy, epoch)
            self._windows.clear()
            self._totals.clear()
            self.latest = None

    def finished(self, counts: ExpertCounts, now: float) -> None:
        """Take a finished request's activations.

        Those of another model than before replace all.
        """
        if self._finished and self._finished[-1][1].shape != counts.shape:
            self._finished.clear()
            self._windows.clear()
        if counts.tokens:
            self._finished.append((now, counts))

    def observe(self, engine: str, steps: Batches, now: float) -> None:
        """Take an engine's totals."""
        before = self._totals.get(engine)
        self._totals[engine] = steps
        if before is None:
            return
        sizes = tuple(new - old for new, old in zip(steps.sizes, before.sizes, strict=True))
        active, requests = steps.active - before.active, steps.requests - before.requests
        fed = steps.fed - before.fed
        # an engine that began anew counts from zero
        if min(sizes) >= 0.0 and min(active, requests, fed) >= 0.0 and sum(sizes) > 0.0:
            self._windows.append((now, engine, Batches(active, sizes, requests, fed)))

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone; what they did stays."""
        for engine in self._totals.keys() - set(engines):
            del self._totals[engine]

    def prepare(self, now: float) -> Callable[[], Saving | None]:
        """Return the work of an update, for another thread.

        Its result is for :attr:`latest`.
        """
        since = now - _KEPT_SECONDS
        known = [(at, request) for at, request in self._finished if at >= now - _OLDEST_SECONDS]
        recent = [request for at, request in known if at >= since]
        counts = [request for _, request in known[-max(len(recent), _LEAST_REQUESTS) :]]
        engines: dict[str, list[Batches]] = {}
        for at, engine, window in self._windows:
            if at >= since:
                engines.setdefault(engine, []).append(window)

        def work() -> Saving | None:
            if len(counts) < _LEAST_REQUESTS:
                return None
            observed = list(engines.values())
            fed = fed_per_request(window for windows in observed for window in windows)
            alone = _mix(counts, 1.0) if fed > 1.0 else None
            return saving(observed, _mix(counts, fed), BATCH_BUCKETS, alone)

        return work


def _mix(counts: Sequence[ExpertCounts], fed: float) -> Mix:
    """Return what requests use with so many tokens in a step, drafts being taken for like those that were accepted.

    In groups of some that finished one after the other: those of a session are alike.
    """
    groups = np.array_split(np.arange(len(counts)), min(len(counts), _MOST_GROUPS))
    unused = np.zeros((len(groups), *counts[0].shape))
    for group, members in enumerate(groups):
        for member in members:
            one = counts[member]
            unused[group] += one.tokens * (1.0 - np.minimum(one.counts / one.tokens, 1.0)) ** fed
    tokens = [sum(counts[member].tokens for member in members) for members in groups]
    return Mix(unused, np.array(tokens, dtype=np.float64))

"""What fails again and again is tried again at growing intervals."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

Owner = tuple[str, str]


class Intervals(NamedTuple):
    """The first and the longest interval in seconds, and how many failures cost none."""

    first: float
    longest: float
    free: int = 0


REFUSED = Intervals(5.0, 300.0)
"""A request that changes nothing, and costs little."""
CONFLICT = Intervals(60.0, 3600.0, free=2)
"""Each attempt can replace pods."""


class Waiting(NamedTuple):
    """The last failure, and in how many seconds the next attempt follows."""

    message: str
    seconds: float


@dataclass(slots=True)
class _Failure:
    message: str
    count: int
    until: float


class Backoff:
    """Counts failures, and doubles the interval with each that repeats the one before it.

    Parameters
    ----------
    intervals : Intervals
        Forgotten after one more of the longest ones.
    """

    def __init__(self, monotonic: Callable[[], float], intervals: Intervals) -> None:
        self._monotonic = monotonic
        self._intervals = intervals
        self._failures: dict[Owner, dict[Hashable, _Failure]] = {}

    def failed(self, owner: Owner, what: Hashable, message: str) -> None:
        """Count a failure of a deployment; the message may differ each time, as where it holds a time or a number."""
        first, longest, free = self._intervals
        now, own = self._monotonic(), self._failures.setdefault(owner, {})
        for old in [each for each, known in own.items() if now > known.until + longest]:
            del own[old]
        known = own.get(what)
        count = known.count + 1 if known is not None else 1
        pause = min(first * 2 ** min(count - free - 1, 10), longest) if count > free else 0.0
        own[what] = _Failure(message, count, now + pause)

    def waiting(self, owner: Owner, what: Hashable) -> Waiting | None:
        """Return what keeps the next attempt waiting; None where it is due."""
        known = self._failures.get(owner, {}).get(what)
        left = known.until - self._monotonic() if known is not None else 0.0
        return Waiting(known.message, left) if known is not None and left > 0 else None

    def succeeded(self, owner: Owner, what: Hashable) -> None:
        """Take note that an attempt has not failed."""
        self._failures.get(owner, {}).pop(what, None)

    def forget(self, owner: Owner) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._failures.pop(owner, None)

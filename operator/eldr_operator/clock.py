"""Times as the API writes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]

_STEP_SECONDS = 5.0
"""By which a clock that is corrected bit by bit may differ between two looks."""
_TRUST_SECONDS = 300.0
"""How long a clock must have stayed where it has jumped."""
FIRST_YEAR, LAST_YEAR = 1969, 9000


def utc_now() -> datetime:
    """Return the time, in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


class SteadyClock:
    """A clock that does not follow another one where that jumps, until it has stayed there.

    What waits for minutes would be over at once where the machine's clock is an hour ahead for a moment.

    Parameters
    ----------
    clock : callable
        The clock to follow.
    monotonic : callable
        Seconds that nobody sets.
    """

    def __init__(self, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._at, self._then = clock(), monotonic()
        self._jumped: float | None = None

    def __call__(self) -> datetime:
        """Return the time."""
        now, wall_time = self._monotonic(), self._clock()
        expected = self._at + timedelta(seconds=now - self._then)
        if abs((wall_time - expected).total_seconds()) > _STEP_SECONDS:
            self._jumped = now if self._jumped is None else self._jumped
            if now - self._jumped < _TRUST_SECONDS:
                return expected.replace(microsecond=0)
        self._at, self._then, self._jumped = wall_time, now, None
        return wall_time


def stamp(time: datetime) -> str:
    """Return a time as the API writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(value: object) -> datetime | None:
    """Return the time that :func:`stamp` wrote, or another one with a time zone; None for what cannot be written again."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return None if moment is None else usable(moment)
    except ValueError:
        return None


def usable(time: datetime) -> datetime:
    """Return a time in UTC, if one can reckon with it.

    Raises
    ------
    ValueError
        If it has no time zone, or lies where adding to it, or writing it, fails.
    """
    if time.tzinfo is None or not FIRST_YEAR < time.year < LAST_YEAR:
        raise ValueError(f"expected a time with a time zone, between {FIRST_YEAR + 1} and {LAST_YEAR - 1}")
    return time.astimezone(UTC)

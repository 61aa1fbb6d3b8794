"""Times as the API writes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]

FIRST_YEAR, LAST_YEAR = 1969, 9000


def utc_now() -> datetime:
    """Return the time, in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def stamp(time: datetime) -> str:
    """Return a time as the API writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(told: object) -> datetime | None:
    """Return the time that :func:`stamp` wrote, or another one with a time zone; None for what cannot be written again."""
    try:
        found = datetime.fromisoformat(told) if isinstance(told, str) else None
        return None if found is None else usable(found)
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

"""Times as the API writes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time, in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def stamp(time: datetime) -> str:
    """Return a time as the API writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: str | None) -> datetime | None:
    """Return the time that :func:`stamp` wrote."""
    return datetime.fromisoformat(text) if text else None

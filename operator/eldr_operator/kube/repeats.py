"""What happens again and again is told once an hour, with how often."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta

_PAUSE = timedelta(hours=1)


@dataclass(slots=True)
class _Told:
    at: datetime
    since: int = 0


class Repeats:
    """Counts what happened since it was told last; forgotten with the process."""

    def __init__(self) -> None:
        self._told: dict[Hashable, _Told] = {}

    def count(self, what: Hashable, now: datetime) -> int:
        """Take note that something has happened; return how often it did, to be told now, or 0 where it was told within the hour."""
        self._told = {key: told for key, told in self._told.items() if now - told.at < 2 * _PAUSE}
        told = self._told.get(what)
        if told is not None and now - told.at < _PAUSE:
            told.since += 1
            return 0
        self._told[what] = _Told(now)
        return 1 if told is None else 1 + told.since

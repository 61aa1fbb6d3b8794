"""What happens again and again is told once an hour, with how often."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta

_PAUSE = timedelta(hours=1)


@dataclass(slots=True)
class _Report:
    at: datetime
    since: int = 0


class Repeats:
    """Counts what happened since it was told last; forgotten with the process."""

    def __init__(self) -> None:
        self._reports: dict[Hashable, _Report] = {}

    def count(self, what: Hashable, now: datetime) -> int:
        """Take note that something has happened; return how often it did, to be told now, or 0 where it was told within the hour."""
        self._reports = {key: report for key, report in self._reports.items() if now - report.at < 2 * _PAUSE}
        report = self._reports.get(what)
        if report is not None and now - report.at < _PAUSE:
            report.since += 1
            return 0
        self._reports[what] = _Report(now)
        return 1 if report is None else 1 + report.since

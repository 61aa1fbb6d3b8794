"""Cron expressions of five fields, in a time zone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""CronSim parses only together with a start time; which one does not matter."""
_FIELDS = 5
_MINUTE = timedelta(minutes=1)
_REPEATED = timedelta(hours=3)
"""More than a change of the clocks repeats: CronSim counts by the wall clock, so that from within it the next time may lie in the past."""


def fault(schedule: str) -> str:
    """Return what is wrong with an expression; empty for nothing."""
    fields = len(schedule.split())
    if fields != _FIELDS:
        return f"{fields} fields"
    try:
        next(CronSim(schedule, _ANY_TIME))
    except (CronSimError, StopIteration) as error:
        return str(error) or "it never comes"
    return ""


def is_zone(name: str) -> bool:
    """Tell whether a time zone is known."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def latest(schedule: str, zone: str, now: datetime) -> datetime:
    """Return the last time that an expression came, up to and with now."""
    before = next(CronSim(schedule, now.astimezone(ZoneInfo(zone)) - _REPEATED, reverse=True))
    last = before
    # Forward again: backwards it comes at other times in an hour that is repeated.
    for came in CronSim(schedule, before - _MINUTE):
        if came.astimezone(UTC) > now:
            return last.astimezone(UTC)
        last = came
    return last.astimezone(UTC)


def following(schedule: str, zone: str, now: datetime) -> datetime:
    """Return the next time that an expression comes, after now."""
    since = now.astimezone(ZoneInfo(zone)) - _REPEATED
    return next(utc for came in CronSim(schedule, since) if (utc := came.astimezone(UTC)) > now)

"""Cron expressions of five fields, in a time zone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""CronSim parses only together with a start time; which one does not matter."""
_FIELDS = 5


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
    here = now.astimezone(ZoneInfo(zone))
    # CronSim's reverse leaves out its start, so begin a minute later and look at what is not in the future.
    return next(came for came in CronSim(schedule, here + timedelta(minutes=1), reverse=True) if came <= here)


def following(schedule: str, zone: str, now: datetime) -> datetime:
    """Return the next time that an expression comes, after now."""
    return next(CronSim(schedule, now.astimezone(ZoneInfo(zone))))

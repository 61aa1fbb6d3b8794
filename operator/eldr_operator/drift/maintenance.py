"""When drift fits may start. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from eldr_operator.drift.spec import MaintenanceWindow

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_FIELDS = 5


def is_usable(window: MaintenanceWindow) -> bool:
    """Tell whether the schedule has five fields and comes some time, and the time zone is known."""
    try:
        ZoneInfo(window.time_zone)
        next(CronSim(window.schedule, _ANY_TIME))
    except (CronSimError, StopIteration, ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return len(window.schedule.split()) == _FIELDS


def opens_at(window: MaintenanceWindow | None, now: datetime) -> datetime | None:
    """Return when the next maintenance window opens; None while one is open, or where every time is as good.

    Parameters
    ----------
    window : MaintenanceWindow or None
        One that :func:`is_usable`.
    now : datetime
        Aware.
    """
    if window is None:
        return None
    here = now.astimezone(ZoneInfo(window.time_zone))
    # CronSim's reverse leaves out its start, so begin a minute later and look at what is not in the future.
    for opened in CronSim(window.schedule, here + timedelta(minutes=1), reverse=True):
        if opened <= here:
            if here.astimezone(now.tzinfo) - opened.astimezone(now.tzinfo) < timedelta(
                minutes=window.duration_minutes
            ):
                return None
            break
    return next(CronSim(window.schedule, here)).astimezone(now.tzinfo)

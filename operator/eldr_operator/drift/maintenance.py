"""When drift fits may start. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from eldr_operator import cron
from eldr_operator.drift.spec import MaintenanceWindow


def is_usable(window: MaintenanceWindow) -> bool:
    """Tell whether the schedule has five fields and comes some time, and the time zone is known."""
    return cron.is_zone(window.time_zone) and not cron.fault(window.schedule)


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
    opened = cron.latest(window.schedule, window.time_zone, now).astimezone(now.tzinfo)
    if now - opened < timedelta(minutes=window.duration_minutes):
        return None
    return cron.following(window.schedule, window.time_zone, now).astimezone(now.tzinfo)

"""When drift fits may start. Pure; apart from the field's model, which tests inside engines read without a cron package."""

from __future__ import annotations

from datetime import datetime, timedelta

from eldr_operator import cron
from eldr_operator.drift.spec import MaintenanceWindow


def is_usable(window: MaintenanceWindow) -> bool:
    """Tell whether the schedule has five fields and comes some time, and the time zone is known."""
    return cron.is_zone(window.time_zone) and not cron.fault(window.schedule)


def opens_at(window: MaintenanceWindow, now: datetime) -> datetime | None:
    """Return when a window that is usable opens next; None while it is open."""
    opened = cron.latest(window.schedule, window.time_zone, now).astimezone(now.tzinfo)
    if now - opened < timedelta(minutes=window.duration_minutes):
        return None
    return cron.following(window.schedule, window.time_zone, now).astimezone(now.tzinfo)

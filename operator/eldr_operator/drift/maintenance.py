"""When drift fits may start. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from eldr_operator.drift.spec import MaintenanceWindow


def opens_at(window: MaintenanceWindow | None, now: datetime) -> datetime | None:
    """Return when the next maintenance window opens; None while one is open, or where every time is as good.

    Parameters
    ----------
    window : MaintenanceWindow or None
    now : datetime
        Aware.

    Raises
    ------
    cronsim.CronSimError, zoneinfo.ZoneInfoNotFoundError
        If the window was not validated before.
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

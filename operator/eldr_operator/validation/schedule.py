"""``spec.refit.schedule`` and its time zone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from eldr_operator.errors import Problem
from eldr_operator.models import RefitSpec

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""CronSim parses only together with a start time; which one does not matter."""


def problems(refit: RefitSpec) -> list[Problem]:
    """Return what is wrong with a schedule and its time zone."""
    found = []
    if refit.schedule:
        remedy = 'write five cron fields, minute hour day month weekday, for example "0 3 * * *", or ""'
        try:
            if len(refit.schedule.split()) != 5:
                raise CronSimError(f"{len(refit.schedule.split())} fields")  # noqa: TRY301 - one place for the remedy
            next(CronSim(refit.schedule, _ANY_TIME))
        except (CronSimError, StopIteration) as error:
            reason = str(error) or "it never comes"
            found.append(
                Problem("InvalidSchedule", "spec.refit.schedule", refit.schedule, f"{reason}; {remedy}")
            )
    try:
        ZoneInfo(refit.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        remedy = "unknown time zone; write an IANA name such as Etc/UTC or Europe/Berlin"
        found.append(Problem("InvalidTimeZone", "spec.refit.timeZone", refit.time_zone, remedy))
    return found

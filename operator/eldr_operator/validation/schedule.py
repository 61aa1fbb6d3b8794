"""Cron expressions and time zones of ``spec.refit``. Pure."""

from __future__ import annotations

from eldr_operator import cron
from eldr_operator.drift.spec import MaintenanceWindow
from eldr_operator.errors import Problem
from eldr_operator.models import RefitSpec

_FIVE = "write five cron fields, minute hour day month weekday, for example"


def problems(refit: RefitSpec) -> list[Problem]:
    """Return what is wrong with a schedule and its time zone."""
    invalid = []
    if refit.schedule and (fault := cron.fault(refit.schedule)):
        text = f'{fault}; {_FIVE} "0 3 * * *", or ""'
        invalid.append(Problem("InvalidSchedule", "spec.refit.schedule", refit.schedule, text))
    return invalid + _zone("InvalidTimeZone", "spec.refit.timeZone", refit.time_zone)


def window_problems(window: MaintenanceWindow | None) -> list[Problem]:
    """Return what is wrong with a maintenance window: no drift fit starts while it is so."""
    if window is None:
        return []
    field, reason = "spec.refit.drift.maintenanceWindow", "InvalidMaintenanceWindow"
    invalid = []
    if fault := cron.fault(window.schedule):
        text = f'{fault}; {_FIVE} "0 1 * * *", or remove the window'
        invalid.append(Problem(reason, f"{field}.schedule", window.schedule, text))
    return invalid + _zone(reason, f"{field}.timeZone", window.time_zone)


def _zone(reason: str, field: str, value: str) -> list[Problem]:
    if cron.is_zone(value):
        return []
    remedy = "unknown time zone; write an IANA name such as Etc/UTC or Europe/Berlin"
    return [Problem(reason, field, value, remedy)]

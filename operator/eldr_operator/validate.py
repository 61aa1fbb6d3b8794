"""Checks that a CRD's CEL rules cannot make. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from eldr import contract
from eldr_operator import arguments, templates, variables
from eldr_operator.desired import podpatch
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment, RefitSpec

_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""CronSim parses only together with a start time; which one does not matter."""


def schedule_problems(refit: RefitSpec) -> list[Problem]:
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


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return every problem of a resource that the API server could not see."""
    return [
        *schedule_problems(cr.spec.refit),
        *arguments.problems(cr),
        *variables.problems(cr),
        *templates.problems(cr),
        *podpatch.problems(cr.spec.prefill.pod_template, "spec.prefill.podTemplate"),
        *podpatch.problems(cr.spec.decode.pod_template, "spec.decode.podTemplate"),
    ]


def blocked_roles(found: Iterable[Problem]) -> set[str]:
    """Return the roles whose workload must stay as it is, because a field that it is made from cannot be used."""
    fields = [problem.field for problem in found]
    return {
        role
        for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE)
        if any(field.startswith((f"spec.{role}.", "spec.engine.")) for field in fields)
    }

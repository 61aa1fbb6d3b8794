"""What the planner plans, briefly."""

from dataclasses import replace
from datetime import UTC, datetime

from eldr_operator import records
from eldr_operator.fits.planner import Refit, Situation
from eldr_operator.fits.planner import plan as plan_at

NIGHTLY = {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
SHOWN = "0 3 * * * Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def plan(cr, fits, table, samples, now, **more):
    """Plan after a pass that left what the status shows."""
    before = records.read(Refit, cr.status.get("refit", {}))
    found = plan_at(cr, Situation(fits=fits, table=table, samples=samples, before=before, **more), now)
    return replace(found, refit=found.refit.to_json())


def names(planned) -> list[str]:
    return [fit["metadata"]["name"] for fit in planned.create]

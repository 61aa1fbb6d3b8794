"""What the planner plans, briefly."""

from dataclasses import replace
from datetime import UTC, datetime

from eldr_operator import records
from eldr_operator.drift.decide import Verdict
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.state import Drift, State
from eldr_operator.fits.planner import Situation
from eldr_operator.fits.planner import plan as plan_at
from eldr_operator.locality.activation import Decision
from eldr_operator.locality.memory import Memory, Refit
from eldr_operator.locality.outcome import Look
from eldr_operator.locality.router_view import RouterView
from tests.unit.operator.routers import POD

NIGHTLY = {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
SHOWN = "0 3 * * * Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def plan(
    cr, fits, table, samples, now, *, order=None, changed=None, blocked=(), refused=None, taken=(), drift=None
):
    """Plan after a pass that left what the status shows; ``changed``: when drift began, ``refused``: a set that a router cannot load."""
    before = Memory(table=table, refit=records.read(Refit, cr.status.get("refit", {})))
    router = RouterView(POD, refused={refused: "damaged"} if refused else None)
    phase = Drift(phase="Detected", changed=changed) if changed else Drift()
    look = Look(
        routers=[router],
        before=before,
        decision=Decision(table, None, is_waiting=False, acks=0),
        seen=Observation(digest=None, samples=samples),
        drift=drift or State(drift=phase, blocked=tuple(blocked)),
        verdict=Verdict("False", "Quiet", "", order),
    )
    found = plan_at(cr, Situation(fits, taken, look), now)
    return replace(found, refit=found.refit.to_json())


def names(planned) -> list[str]:
    return [fit["metadata"]["name"] for fit in planned.create]

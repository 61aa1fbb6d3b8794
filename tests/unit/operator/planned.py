"""What the planner plans, briefly."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

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
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, POD, make_cr, make_set

NIGHTLY = {"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
SHOWN = "0 3 * * * Europe/Berlin"
DUE = {"refit": {"schedule": SHOWN, "nextScheduleTime": "2026-11-22T02:00:00Z"}}
NO_SET = Table()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def plan(fits=(), table=NO_SET, cr=None, *, samples=5000, now=NOW, **more):
    """Plan after a pass that left what the status shows, in a situation."""
    cr = cr or make_cr()
    before = records.read(Refit, cr.status.get("refit", {}))
    found = plan_at(cr, situation(fits, table, samples, before, **more), now)
    return replace(found, refit=found.refit.to_json())


def nightly(now, fits=(), table=NO_SET, **more):
    """Plan by a schedule of each night."""
    return plan(fits, table, make_cr(DUE, refit=NIGHTLY), samples=0, now=utc(now), **more)


def situation(
    fits,
    table,
    samples=0,
    refit=None,
    *,
    order=None,
    changed=None,
    blocked=(),
    refused=None,
    taken=(),
    drift=None,
    since=LONG_AGO,
):
    """Return a situation; ``changed``: when drift began, ``refused``: a set that a router cannot load, ``since``: of the replicas."""
    router = RouterView(POD, refused={refused: "damaged"} if refused else None)
    phase = Drift(phase="Detected", changed=changed) if changed else Drift()
    look = Look(
        routers=[router],
        before=Memory(table=table, refit=refit or Refit(), replicas=2, replicas_since=since),
        decision=Decision(table, None, is_waiting=False, acks=0),
        seen=Observation(digest=None, samples=samples),
        drift=drift or State(drift=phase, blocked=tuple(blocked)),
        verdict=Verdict("False", "Quiet", "", order),
    )
    return Situation(fits, taken, look)


def names(planned) -> list[str]:
    return [planned.create["metadata"]["name"]] if planned.create else []


def active(fit, k=2, since=NOW - timedelta(hours=1)):
    return Table(epoch=1, active=make_set(fit, k), activated_at=since)

"""Whether a fit that drift asks for starts now, or what it waits for and until when. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from eldr_operator import clock
from eldr_operator.drift import maintenance
from eldr_operator.drift.judge import logged_records
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import State

DAY = timedelta(days=1)
OBSERVING = "spec.refit.drift.mode is Observe: drift is only reported"


class FitOrder(NamedTuple):
    """A fit to create, unless it exists.

    Attributes
    ----------
    number : int
        ``N`` of ``NAME-drift-N``.
    since : datetime or None
        Older log records are of the old regime; None where traffic has not changed since the active set's.
    before : datetime or None
        Records that are older than this are wholly of the old regime.
    """

    number: int
    since: datetime | None
    before: datetime | None = None


class NextFit(NamedTuple):
    """Reason and text of the condition DriftDetected, and the fit to create or when to look again."""

    reason: str
    text: str
    order: FitOrder | None = None
    wake_at: datetime | None = None


def next_fit(state: State, spec: DriftSpec, seen: Observation, now: datetime) -> NextFit:
    """Return what a fit waits for, or its order."""
    if spec.mode == "Observe":
        return NextFit("Observing", OBSERVING)
    if not seen.places:
        return NextFit("PolicyIgnoresCentroids", "spec.router.policy uses no centroids: no fit starts")
    if seen.pinned:
        text = "spec.centroids.pin is set: until it is removed there are no drift fits, and nothing is activated or rolled back by itself"
        return NextFit("Pinned", text)
    if seen.suspended:
        return NextFit("Suspended", "spec.refit.suspend is Enabled: no fit starts")
    if seen.busy is not None:
        return NextFit("Fitting", f"EldrFit {seen.busy} runs, or its set is about to be activated")
    drift, fits, window = state.drift, state.fits, spec.maintenance_window
    if fits.finished is not None:
        pause = timedelta(minutes=spec.cool_down_minutes) * 2 ** min(max(0, fits.fruitless - 1), 16)
        until = fits.finished + min(pause, DAY)
        if now < until:
            text = f"The next drift fit waits until {clock.stamp(until)}: spec.refit.drift.coolDownMinutes, doubled with each fit that does not help"
            return NextFit("CoolDown", text, None, until)
    if len(fits.started) >= spec.max_per_day:
        free = fits.started[-spec.max_per_day] + DAY if spec.max_per_day else None
        waits = (
            f"the next one waits until {clock.stamp(free)}"
            if free
            else "spec.refit.drift.maxPerDay allows none"
        )
        return NextFit(
            "BudgetSpent", f"The {spec.max_per_day} drift fits of a day are spent; {waits}", None, free
        )
    changed = drift.phase == "Detected"
    records = min(seen.samples, logged_records(drift, seen)) if changed else seen.samples
    if records < seen.min_samples:
        of = " since then" if changed else ""
        text = f"A fit waits for log records{of}: about {records} of spec.refit.minSamples {seen.min_samples}"
        return NextFit("WaitingForRecords", text)
    if window is not None and not maintenance.is_usable(window):
        text = (
            f"No drift fit starts: spec.refit.drift.maintenanceWindow has schedule {window.schedule!r} and timeZone "
            f'{window.time_zone!r}; write five cron fields, for example "0 1 * * *", and an IANA name'
        )
        return NextFit("InvalidMaintenanceWindow", text)
    if window is not None and (opens := maintenance.opens_at(window, now)) is not None:
        text = f"A fit waits for the maintenance window at {clock.stamp(opens)}"
        return NextFit("OutsideMaintenanceWindow", text, None, opens)
    if not changed:
        return NextFit("Fitting", "A fit on recent records starts", FitOrder(fits.number + 1, None))
    since = drift.changed or now
    order = FitOrder(fits.number + 1, since, drift.began)
    return NextFit("Fitting", f"A fit on the records since {clock.stamp(since)} starts", order)

"""What is said about drift, in the words of who runs a deployment. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from eldr.contract import POLICY_ELDR
from eldr_operator import clock
from eldr_operator.drift.counts import Baseline, Saving
from eldr_operator.drift.judge import keeps
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.protection import RETURNS
from eldr_operator.drift.spec import DriftSpec, MaintenanceWindow
from eldr_operator.drift.state import Protection, Shown, State

DISABLED = "spec.refit.drift.mode is Disabled"
NO_SET = "no centroid set is active"
NO_BASELINE = "the fit of the active set stored no usable baseline: it is of an older version, or its EldrFit says what is wrong. The next fit stores one; create an EldrFit to have it now"
BASELINE_UNUSABLE = "the active set's baseline holds too few records or another number of clusters; create an EldrFit with more records"
OBSERVING = "spec.refit.drift.mode is Observe: drift is only reported"
PINNED = "spec.centroids.pin is set: until it is removed there are no drift fits, and nothing is activated or rolled back by itself"
NO_USE = "spec.router.policy uses no centroids: no fit starts"
SUSPENDED = "spec.refit.suspend is Enabled: no fit starts"
HARM = "The active set saves less than placement by load"
PRIOR_DECAYS = "; under MarginalUnion its prior decays by itself, so it goes on serving"
PINNED_REGRESSES = "; it is pinned and goes on serving. Remove spec.centroids.pin"
REGRESSES_OBSERVED = "; spec.refit.drift.mode is Observe, so it goes on serving"


def gathering(spec: DriftSpec) -> str:
    """Say what there is to wait for."""
    return f"waiting for {spec.window_requests} requests with the active set"


def quiet(shown: Shown) -> str:
    """Say how near to the baseline traffic is."""
    return (
        f"drift score {shown.value:.2f} (threshold 1): of the last {shown.requests} requests {shown.similarity:.0%} have another "
        f"similarity to the centroids than expected, and {shown.clusters:.0%} another nearest centroid"
    )


def detected(state: State, seen: Observation) -> str:
    """Say what has changed, and since when."""
    drift = state.drift
    since = "" if drift.changed is None else f" since {clock.stamp(drift.changed)}"
    if drift.cause == "SavingLost":
        return f"{_saves(seen.saving, seen.baseline)}{since}"
    if state.shown is None:
        return f"traffic has changed{since}"
    return f"traffic has changed{since}: {quiet(state.shown)}"


def fitting(name: str) -> str:
    """Say which fit is on its way."""
    return f"EldrFit {name} runs, or its set is about to be activated"


def fit_starts(since: datetime | None) -> str:
    """Say what the fit looks at."""
    if since is None:
        return "A fit on recent records starts"
    return f"A fit on the records since {clock.stamp(since)} starts"


def cool_down(until: datetime) -> str:
    """Say when the next fit may start."""
    return f"The next drift fit waits until {clock.stamp(until)}: spec.refit.drift.coolDownMinutes, doubled with each fit that does not help"


def budget(limit: int, free: datetime | None) -> str:
    """Say when the budget is free again."""
    until = (
        "spec.refit.drift.maxPerDay allows none"
        if free is None
        else f"the next one waits until {clock.stamp(free)}"
    )
    return f"The {limit} drift fits of a day are spent; {until}"


def records(held: int, wanted: int, *, changed: bool) -> str:
    """Say how many records of the regime there are."""
    of = " since then" if changed else ""
    return f"A fit waits for log records{of}: about {held} of spec.refit.minSamples {wanted}"


def maintenance(opens: datetime) -> str:
    """Say when fits may start."""
    return f"A fit waits for the maintenance window at {clock.stamp(opens)}"


def unusable(window: MaintenanceWindow) -> str:
    """Say why no fit starts at all."""
    return (
        f"No drift fit starts: spec.refit.drift.maintenanceWindow has schedule {window.schedule!r} and timeZone "
        f'{window.time_zone!r}; write five cron fields, for example "0 1 * * *", and an IANA name'
    )


def instead(to: str | None, policy: str, harmful: Collection[str]) -> str:
    """Say what follows a set that is taken back."""
    if to is None:
        return "no set serves; requests are placed without centroids"
    if to in harmful and policy == POLICY_ELDR:
        return "the set before is active again, out of service until it is known not to regress"
    return "the set before serves again"


def lost(seen: Observation, spec: DriftSpec) -> str:
    """Say that a set on trial does not keep its promise."""
    return (
        f"{_saves(seen.saving, seen.baseline)}: in {spec.consecutive_windows} consecutive windows after its activation "
        f"less than {keeps(seen.policy):.0%} of the prediction"
    )


def roll_back(follows: str, seen: Observation, spec: DriftSpec, *, acts: bool) -> str:
    """Say why a set is taken back, and what serves instead."""
    done = follows if acts else f"{OBSERVING}; else {follows}"
    return f"{lost(seen, spec)}: {done}"


def returned(follows: str, *, acts: bool) -> str:
    """Say why a set is taken back whose traffic did not last."""
    done = follows if acts else f"{OBSERVING}; else {follows}"
    return f"the traffic that the set was fitted on is over, and the traffic from before has returned: {done}"


def protective(protection: Protection) -> str:
    """Say what serves instead, and how the set comes back."""
    if protection.returns >= RETURNS:
        return f"; JSQ is in effect until there is another set: this one came back {RETURNS} times and regressed again"
    if not protection.left:
        return "; JSQ is in effect until there is another set: traffic matches the data that this one was fitted on"
    return "; JSQ is in effect until there is a better set, or traffic again matches the data that this one was fitted on"


def waits(protection: Protection) -> str:
    """Say why another set is needed without drift."""
    if protection.left and protection.returns < RETURNS:
        return "the active set is out of service, and traffic neither matches the data that it was fitted on nor clearly differs"
    return "the active set is out of service, though traffic matches the data that it was fitted on"


def _saves(saving: Saving | None, baseline: Baseline | None) -> str:
    measured = "too little" if saving is None else f"{saving.share:.1%} (+- {1.96 * saving.error:.1%})"
    promised = "" if baseline is None or baseline.saving is None else f", {baseline.saving:.1%} was predicted"
    return f"the set saves {measured} of active experts{promised}"

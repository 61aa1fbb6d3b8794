"""What to do about drift now: state, settings and a look at the deployment in; state and verdict out. Pure.

Deciding twice on the same look gives the same state and the same verdict, and what a verdict asks for is asked for until
it is seen to have happened. So it does not matter where between the two an operator is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from eldr import contract
from eldr_operator import clock
from eldr_operator.drift.judge import ON_TRIAL, judge, keeps, on_return
from eldr_operator.drift.next_fit import DAY, OBSERVING, FitOrder, next_fit
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.protection import (
    MOST_SETS,
    RETURNS,
    believe,
    is_replaced,
    note_harm,
    rest,
    waits_for_another,
)
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Drift, Fits, Known, Promise, Protection, Shown, State

_KNOWN_SPREAD = 8.0
_HARM = "The active set saves less than placement by load"
_NO_BASELINE = "the fit of the active set stored no usable baseline: it is of an older version, or its EldrFit says what is wrong. The next fit stores one; create an EldrFit to have it now"
_BASELINE_UNUSABLE = "the active set's baseline holds too few records or another number of clusters; create an EldrFit with more records"


@dataclass(frozen=True, slots=True)
class RollBack:
    """A set to take back, and the digest of the one that serves instead, None for no set.

    Parameters
    ----------
    returned : bool
        Whether traffic is again what it was before the set's own, and what served that can serve again.
    """

    digest: str
    to: str | None
    returned: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do and to say; status, reason and message are those of the condition DriftDetected.

    Parameters
    ----------
    protective : bool
        JSQ is to be in effect.
    harm : tuple of str or None
        Reason and message where the active set harms, whether or not that has consequences.
    wake_at : datetime or None
        When time alone changes the verdict.
    """

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    fit: FitOrder | None = None
    roll_back: RollBack | None = None
    protective: bool = False
    harm: tuple[str, str] | None = None
    wake_at: datetime | None = None


def decide(state: State, spec: DriftSpec, seen: Observation, now: datetime) -> tuple[State, Verdict]:
    """Return the state, to persist before anything that the verdict asks for is done, and the verdict.

    Parameters
    ----------
    state : State
        As persisted last.
    """
    state = _count_fits(_adopt(state, seen), seen, now)
    if spec.mode == "Disabled":
        verdict = Verdict("Unknown", "Disabled", "spec.refit.drift.mode is Disabled")
        return note_harm(_rest(state, seen)), verdict
    state = note_harm(_believe(judge(state, spec, seen), seen, now))
    roll_back = _roll_back(state, spec, seen)
    if roll_back is not None and spec.mode == "Enabled":
        state = block(state, roll_back.digest)
    return state, _verdict(state, spec, seen, roll_back, now)


def _adopt(state: State, seen: Observation) -> State:
    """Begin anew where another set is active; what is known of the traffic's bursts, of fits and of bad sets stays."""
    if seen.digest == state.digest:
        return state
    # What serves after a roll-back has been on trial before: what it lacks now is a matter of drift.
    tried = state.digest is not None and state.digest in state.blocked
    # One that harmed may do so again: it is active, to tell when its traffic returns, but does not serve until then.
    harms = seen.digest in state.harmful
    return state.but(
        digest=seen.digest,
        shown=None,
        known=Known(),
        spread=state.spread.but(weight=min(state.spread.weight, _KNOWN_SPREAD)),
        drift=Drift(),
        promise=Promise(windows=ON_TRIAL if tried else 0),
        protection=Protection(active=True, since=seen.activated, left=True) if harms else Protection(),
    )


def _believe(state: State, seen: Observation, now: datetime) -> State:
    """Let a report on the active set count; what it brings back is not on trial."""
    protection = believe(state, seen, now)
    promise = on_return(state.protection, protection, state.promise)
    return state.but(protection=protection, promise=promise)


def _rest(state: State, seen: Observation) -> State:
    """Judge nothing. What is known of the set stays: what is read now is no news later, and what served meanwhile is not on trial."""
    if state.digest is None:
        return state
    return state.but(
        shown=None,
        drift=Drift(),
        promise=Promise(windows=max(ON_TRIAL, state.promise.windows)),
        protection=rest(state, seen),
    )


def _count_fits(state: State, seen: Observation, now: datetime) -> State:
    """Take note of fits that exist; only this moves the number, so an order is repeated until its fit is seen."""
    fits = state.fits
    new = [fit for fit in seen.fits if fit.number > fits.number]
    started = {at for at in (*fits.started, *(fit.created for fit in seen.fits)) if now - at < DAY}
    finished = [fit.finished for fit in seen.fits]
    made = Fits(
        number=max([fits.number, *(fit.number for fit in new)]),
        started=tuple(sorted(started)),
        finished=max(filter(None, (fits.finished, *finished)), default=None),
        fruitless=fits.fruitless + len(new),
    )
    return state.but(fits=made)


def _roll_back(state: State, spec: DriftSpec, seen: Observation) -> RollBack | None:
    if state.digest is None or seen.pinned:
        return None
    lost = _has_failed(state, spec)
    to = None if seen.previous in state.blocked else seen.previous
    returned = to is not None and state.drift.phase == "Detected" and state.drift.returned
    if not lost and not returned and state.digest not in state.blocked:
        return None
    return RollBack(state.digest, to, returned=returned)


def _has_failed(state: State, spec: DriftSpec) -> bool:
    """Tell whether the set has not kept its promise while on trial."""
    return state.promise.lost >= spec.consecutive_windows and state.promise.windows <= ON_TRIAL


def block(state: State, digest: str) -> State:
    """Return it with a set blocked: it is not activated by itself any more."""
    if digest in state.blocked:
        return state
    return state.but(blocked=(*state.blocked, digest)[-MOST_SETS:])


def _verdict(
    state: State, spec: DriftSpec, seen: Observation, roll_back: RollBack | None, now: datetime
) -> Verdict:
    harm, protective = _harm(state, spec, seen), is_replaced(state, spec, seen)
    if roll_back is not None:
        text = f"{_why(roll_back, spec, seen)}: "
        if spec.mode == "Observe":
            text += f"{OBSERVING}; else {_instead(state, roll_back, seen)}"
            return Verdict("True", "Observing", text, protective=protective, harm=harm)
        text += _instead(state, roll_back, seen)
        return Verdict("True", "RollBack", text, None, roll_back, protective, harm)
    if state.digest is None:
        return Verdict("Unknown", "NoSet", "no centroid set is active")
    if state.drift.phase == "Detected":
        what = _detected(state, seen)
    elif protective and waits_for_another(state):
        what = _waits(state.protection)
    elif seen.pinned and not protective and _has_failed(state, spec):
        what = _lost(spec, seen)
    else:
        status, reason, message = _quiet(state, spec, seen)
        return Verdict(status, reason, message, protective=protective, harm=harm)
    upcoming = next_fit(state, spec, seen, now)
    message = f"{what}. {upcoming.text}"
    return Verdict("True", upcoming.reason, message, upcoming.order, None, protective, harm, upcoming.wake_at)


def _quiet(
    state: State, spec: DriftSpec, seen: Observation
) -> tuple[Literal["True", "False", "Unknown"], str, str]:
    if seen.baseline is None:
        return "Unknown", "NoBaseline", _NO_BASELINE
    if state.shown is not None:
        return "False", state.drift.phase, _score(state.shown)
    if state.seen is not None and seen.window is not None and seen.window.digest == state.digest:
        return "Unknown", "BaselineUnusable", _BASELINE_UNUSABLE
    return "Unknown", "Gathering", f"waiting for {spec.window_requests} requests with the active set"


def _harm(state: State, spec: DriftSpec, seen: Observation) -> tuple[str, str] | None:
    """Say what serves instead of a set that harms, and how it comes back."""
    known = state.protection
    if state.digest is None or not known.active or not seen.places:
        return None
    if seen.policy == contract.POLICY_MARGINAL:
        text = f"{_HARM}; under MarginalUnion its prior decays by itself, so it goes on serving"
        return "PriorDecays", text
    if seen.chosen:
        text = f"{_HARM}; it is pinned and goes on serving. Remove spec.centroids.pin"
        return "PinnedRegresses", text
    if not is_replaced(state, spec, seen):
        return "Regresses", f"{_HARM}; spec.refit.drift.mode is Observe, so it goes on serving"
    until = "there is a better set, or traffic again matches the data that this one was fitted on"
    if known.returns >= RETURNS:
        until = f"there is another set: this one came back {RETURNS} times and regressed again"
    elif not known.left:
        until = "there is another set: traffic matches the data that this one was fitted on"
    return "Protective", f"{_HARM}; JSQ is in effect until {until}"


def _score(shown: Shown) -> str:
    return (
        f"drift score {shown.value:.2f} (threshold 1): of the last {shown.requests} requests {shown.similarity:.0%} have another "
        f"similarity to the centroids than expected, and {shown.clusters:.0%} another nearest centroid"
    )


def _detected(state: State, seen: Observation) -> str:
    drift = state.drift
    since = "" if drift.changed is None else f" since {clock.stamp(drift.changed)}"
    if drift.cause == "SavingLost":
        return f"{_saves(seen)}{since}"
    return f"traffic has changed{since}" + (f": {_score(state.shown)}" if state.shown else "")


def _waits(protection: Protection) -> str:
    """Say why another set is needed without drift."""
    if protection.left and protection.returns < RETURNS:
        return "the active set is out of service, and traffic neither matches the data that it was fitted on nor clearly differs"
    return "the active set is out of service, though traffic matches the data that it was fitted on"


def _why(roll_back: RollBack, spec: DriftSpec, seen: Observation) -> str:
    if roll_back.returned:
        return "the traffic that the set was fitted on is over, and the traffic from before has returned"
    return _lost(spec, seen)


def _instead(state: State, roll_back: RollBack, seen: Observation) -> str:
    if roll_back.to is None:
        return "no set serves; requests are placed without centroids"
    if roll_back.to in state.harmful and seen.policy == contract.POLICY_ELDR:
        return "the set before is active again, out of service until it is known not to regress"
    return "the set before serves again"


def _lost(spec: DriftSpec, seen: Observation) -> str:
    return (
        f"{_saves(seen)}: in {spec.consecutive_windows} consecutive windows after its activation "
        f"less than {keeps(seen.policy):.0%} of the prediction"
    )


def _saves(seen: Observation) -> str:
    saving, predicted = seen.saving, seen.baseline and seen.baseline.saving
    measured = "too little" if saving is None else f"{saving.share:.1%} (+- {1.96 * saving.error:.1%})"
    text = f"the set saves {measured} of active experts"
    return text if predicted is None else f"{text}, {predicted:.1%} was predicted"

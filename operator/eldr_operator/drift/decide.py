"""What to do about drift now: state, settings and a look at the deployment in; state and verdict out. Pure.

Deciding twice on the same look gives the same state and the same verdict, and what a verdict asks for is asked for until
it is seen to have happened. So it does not matter where between the two an operator is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from eldr.contract import POLICY_MARGINAL
from eldr_operator.drift import messages
from eldr_operator.drift.judge import ON_TRIAL, judge, on_return, told
from eldr_operator.drift.maintenance import is_usable, opens_at
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.protection import MOST_SETS, believe, is_replaced, note_harm, rest, waits_for_another
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Drift, Fits, Promise, Protection, Spread, State

DAY = timedelta(days=1)
LONGEST_COOL_DOWN = DAY
_KNOWN_SPREAD = 8.0


@dataclass(frozen=True, slots=True)
class FitOrder:
    """A fit to create, unless it exists.

    Parameters
    ----------
    number : int
        ``N`` of ``NAME-drift-N``.
    since : datetime or None
        Older log records are of the old regime; None where traffic has not changed since the active set's.
    before : datetime, optional
        Records that are older than this are wholly of the old regime.
    """

    number: int
    since: datetime | None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """A set to take back.

    Parameters
    ----------
    to : str or None
        Digest of the set that serves instead; None for no set.
    returned : bool
        Whether traffic is again what it was before the set's own, and what served that can serve again.
    """

    digest: str
    to: str | None
    returned: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do and to say.

    Parameters
    ----------
    status : {"True", "False", "Unknown"}
        Of the condition DriftDetected.
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
    """Decide.

    Parameters
    ----------
    state : State
        As persisted last.
    now : datetime
        Aware.

    Returns
    -------
    state : State
        To persist before anything that the verdict asks for is done.
    verdict : Verdict
    """
    state = _count_fits(_adopt(state, seen), seen, now)
    if spec.mode == "Disabled":
        return note_harm(_rest(state, seen)), Verdict("Unknown", "Disabled", messages.DISABLED)
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
    spread = state.spread
    return State(
        digest=seen.digest,
        seen=state.seen,
        spread=Spread(
            similarity=spread.similarity,
            clusters=spread.clusters,
            weight=min(spread.weight, _KNOWN_SPREAD),
        ),
        promise=Promise(windows=ON_TRIAL if tried else 0),
        protection=Protection(active=True, since=seen.activated, left=True) if harms else Protection(),
        fits=state.fits,
        blocked=state.blocked,
        harmful=state.harmful,
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
    finished = [fit.finished for fit in seen.fits if fit.finished is not None]
    latest = max((at for at in (fits.finished, *finished) if at is not None), default=None)
    return state.but(
        fits=Fits(
            number=max([fits.number, *(fit.number for fit in new)]),
            started=tuple(sorted(started)),
            finished=latest,
            fruitless=fits.fruitless + len(new),
        )
    )


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
    acts = spec.mode == "Enabled"
    harm = _harm(state, spec, seen)
    protective = is_replaced(state, spec, seen)
    if roll_back is not None:
        follows = messages.instead(roll_back.to, seen.policy, state.harmful)
        text = (
            messages.returned(follows, acts=acts)
            if roll_back.returned
            else messages.roll_back(follows, seen, spec, acts=acts)
        )
        return Verdict(
            "True",
            "RollBack" if acts else "Observing",
            text,
            roll_back=roll_back if acts else None,
            protective=protective,
            harm=harm,
        )
    if state.digest is None:
        return Verdict("Unknown", "NoSet", messages.NO_SET)
    if state.drift.phase == "Detected":
        what = messages.detected(state, seen)
    elif protective and waits_for_another(state):
        what = messages.waits(state.protection)
    elif seen.pinned and not protective and _has_failed(state, spec):
        what = messages.lost(seen, spec)
    else:
        status, reason, message = _quiet(state, spec, seen)
        return Verdict(status, reason, message, protective=protective, harm=harm)
    reason, text, order, wake_at = _next_fit(state, spec, seen, now)
    message = f"{what}. {text}"
    return Verdict("True", reason, message, order, None, protective, harm, wake_at)


def _quiet(
    state: State, spec: DriftSpec, seen: Observation
) -> tuple[Literal["True", "False", "Unknown"], str, str]:
    if seen.baseline is None:
        return "Unknown", "NoBaseline", messages.NO_BASELINE
    if state.shown is None:
        if state.seen is not None and seen.window is not None and seen.window.digest == state.digest:
            return "Unknown", "BaselineUnusable", messages.BASELINE_UNUSABLE
        return "Unknown", "Gathering", messages.gathering(spec)
    return "False", state.drift.phase, messages.quiet(state.shown)


def _next_fit(
    state: State, spec: DriftSpec, seen: Observation, now: datetime
) -> tuple[str, str, FitOrder | None, datetime | None]:
    """Return why a fit starts now, or what it waits for and until when."""
    drift, fits = state.drift, state.fits
    changed = drift.phase == "Detected"
    since = (drift.changed or now) if changed else None
    if spec.mode == "Observe":
        return "Observing", messages.OBSERVING, None, None
    if not seen.places:
        return "PolicyIgnoresCentroids", messages.NO_USE, None, None
    if seen.pinned:
        return "Pinned", messages.PINNED, None, None
    if seen.suspended:
        return "Suspended", messages.SUSPENDED, None, None
    if seen.busy is not None:
        return "Fitting", messages.fitting(seen.busy), None, None
    if fits.finished is not None:
        pause = timedelta(minutes=spec.cool_down_minutes) * 2 ** min(max(0, fits.fruitless - 1), 16)
        until = fits.finished + min(pause, LONGEST_COOL_DOWN)
        if now < until:
            return "CoolDown", messages.cool_down(until), None, until
    if len(fits.started) >= spec.max_per_day:
        free = fits.started[-spec.max_per_day] + DAY if spec.max_per_day else None
        return "BudgetSpent", messages.budget(spec.max_per_day, free), None, free
    records = min(seen.samples, told(drift, seen)) if changed else seen.samples
    if records < seen.min_samples:
        return "WaitingForRecords", messages.records(records, seen.min_samples, changed=changed), None, None
    if spec.maintenance_window is not None and not is_usable(spec.maintenance_window):
        return "InvalidMaintenanceWindow", messages.unusable(spec.maintenance_window), None, None
    opens = opens_at(spec.maintenance_window, now)
    if opens is not None:
        return "OutsideMaintenanceWindow", messages.maintenance(opens), None, opens
    return (
        "Fitting",
        messages.fit_starts(since),
        FitOrder(fits.number + 1, since, drift.began if changed else None),
        None,
    )


def _harm(state: State, spec: DriftSpec, seen: Observation) -> tuple[str, str] | None:
    protection = state.protection
    if state.digest is None or not protection.active or not seen.places:
        return None
    if seen.policy == POLICY_MARGINAL:
        return "PriorDecays", messages.HARM + messages.PRIOR_DECAYS
    if seen.chosen:
        return "PinnedRegresses", messages.HARM + messages.PINNED_REGRESSES
    if not is_replaced(state, spec, seen):
        return "Regresses", messages.HARM + messages.REGRESSES_OBSERVED
    return "Protective", messages.HARM + messages.protective(protection)

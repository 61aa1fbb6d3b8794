"""What one more window of requests says: state in, state out. Pure.

Everything counts consecutive windows, and raises higher than it clears, so that nothing flaps.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import hypot

from eldr.contract import POLICY_MARGINAL
from eldr_operator.drift.counts import Saving
from eldr_operator.drift.evidence import RAISE, Scores, Z, learn_reference, learn_spread, shown, weigh
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.protection import WAITS, is_replaced, watch
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Drift, Promise, Protection, State
from eldr_operator.drift.windows import Window

KEEPS = 0.5
"""Share of the predicted saving that a set must bring."""
KEEPS_WITH_LOAD = 0.25
"""The same under MarginalUnion: predictions are made with the band, and it gives up some of the saving for shorter queues."""
ON_TRIAL = 20
"""Windows after an activation in which a set that does not keep its promise is rolled back; later on that is drift."""
SETTLE = timedelta(minutes=2)
"""After a change of placement: what is measured before is of sequences that were placed otherwise."""
LEAST_STEPS = 100
"""A saving measured on fewer decode steps says nothing."""
LEAST_BATCH = 0.5
"""Of the batch that a prediction assumed: placement saves less in smaller ones, and breaks no promise by that."""
FORGOTTEN = 20
"""Windows without a lost one after which a saving is lost no longer, though nothing could be measured in them: batches became small, say."""
UNSETTLED = timedelta(hours=6)
"""While the mix goes on changing, a fit waits for its end, but no longer than this."""


def judge(state: State, spec: DriftSpec, seen: Observation) -> State:
    """Take a window into account; one that was judged before, or that is of another set, changes nothing."""
    window = seen.window
    if window is None or window.digest != state.digest:
        return state
    if state.seen is not None and window.latest.until <= state.seen:
        return state
    scores = weigh(state, spec, seen, window)
    saving = _measured(state, spec, seen, window.latest.until)
    promise = _promise(state, seen, saving, window.latest.until)
    protection = watch(state, spec, saving, scores, window.latest.until)
    promise = on_return(state.protection, protection, promise)
    drift = _drift(state, spec, seen, scores, window, promise=promise)
    if protection.active:
        waited = 0 if drift.phase == "Detected" else min(protection.waited + 1, WAITS)
        protection = protection.but(waited=waited)
    # A fit that leaves a harmful set out of service has brought nothing, however calm traffic is.
    calm = scores.calm and drift.phase == "Quiet" and not protection.active
    return state.but(
        seen=window.latest.until,
        shown=shown(scores, spec, window) or state.shown,
        known=learn_reference(state, spec, scores, seen, window) if drift.phase == "Quiet" else state.known,
        spread=learn_spread(state, spec, scores, seen.baseline, window),
        drift=drift,
        promise=promise,
        protection=protection,
        fits=state.fits.but(fruitless=0) if calm else state.fits,
    )


def keeps(policy: str) -> float:
    """Return the share of the predicted saving that a set must bring."""
    return KEEPS_WITH_LOAD if policy == POLICY_MARGINAL else KEEPS


def on_return(before: Protection, after: Protection, promise: Promise) -> Promise:
    """Return the promise of the active set: one that comes back into service is not on trial."""
    return Promise(windows=ON_TRIAL) if before.active and not after.active else promise


def _drift(
    state: State, spec: DriftSpec, seen: Observation, scores: Scores, window: Window, *, promise: Promise
) -> Drift:
    drift, until, requests = state.drift, window.latest.until, window.latest.counts.requests
    streak = drift.streak + 1 if scores.differs else 0
    wanted = spec.consecutive_windows
    if drift.phase == "Detected":
        calm = drift.calm + 1 if scores.calm else 0
        saves = promise.kept >= wanted or promise.since_lost >= FORGOTTEN
        if calm >= wanted and (drift.cause != "SavingLost" or saves):
            return Drift()
        against = 0.0 if scores.against_change is None else scores.against_change.value
        moves = against >= RAISE
        # A regime that there was time to fit is over: it has no part in the next fit, however long ago drift was detected.
        unsettled = until if moves and _is_past(state, seen) else drift.unsettled
        begin = unsettled or drift.since
        moving = moves and begin is not None and until - begin < UNSETTLED
        return drift.but(
            streak=streak,
            calm=calm,
            changed=until if moving else drift.changed,
            requests=0 if moving else drift.requests + requests,
            logged=_logged(drift, window, begins=moving),
            unsettled=unsettled,
            steady=scores.against_change is not None and not moves,
            returned=scores.returned,
        )
    changed, began, total = drift.changed, drift.began, drift.requests + requests
    if streak <= 1:
        changed, began, total = (until, window.latest.since, 0) if streak else (None, None, 0)
    logged = _logged(drift, window, begins=streak <= 1)
    made = Drift(changed=changed, began=began, streak=streak, requests=total, logged=logged)
    if streak >= wanted and scores.total >= RAISE:
        detected = {"phase": "Detected", "cause": "TrafficChanged", "since": until}
        return made.but(**detected, returned=scores.returned)
    if promise.lost >= wanted and promise.windows > ON_TRIAL:
        # How many requests came since then was not counted; those of the last windows did, at least.
        span = window.together(wanted)
        total = max(total, 0 if span is None else span.counts.requests - requests)
        if span is not None and span.counts.logged is not None:
            logged = max(logged or 0, span.counts.logged)
        detected = {"phase": "Detected", "cause": "SavingLost", "since": until}
        return made.but(**detected, changed=promise.lost_since, began=None, requests=total, logged=logged)
    over = streak > 0 and max(scores.total, scores.latest.value if scores.latest else 0.0) >= RAISE
    return made.but(phase="Suspected") if over else made


def _is_past(state: State, seen: Observation) -> bool:
    """Tell whether a regime that ends has had the records for a fit, and stood still or had its fit."""
    drift, changed = state.drift, state.drift.changed
    had = changed is not None and any(at > changed for at in state.fits.started)
    return logged_records(drift, seen) >= seen.min_samples and (drift.steady or had)


def logged_records(drift: Drift, seen: Observation) -> int:
    """Return how many log records there are since the change, as far as is told."""
    return int(drift.requests * seen.sample_rate) if drift.logged is None else drift.logged


def _logged(drift: Drift, window: Window, *, begins: bool) -> int | None:
    """Return how many log records there are since the change, this window's included, or none yet where it begins here."""
    latest = window.latest.counts.logged
    if latest is None:
        return None
    return 0 if begins else (drift.logged or 0) + latest


def _measured(state: State, spec: DriftSpec, seen: Observation, now: datetime) -> Saving | None:
    """Return the measured saving, if it is one of the active set's placement."""
    since = max((at for at in (seen.activated, state.protection.since) if at is not None), default=None)
    if seen.saving is None or seen.saving.steps < LEAST_STEPS or not seen.places:
        return None
    if is_replaced(state, spec, seen) or (since is not None and now - since < SETTLE):
        return None
    return seen.saving


def _promise(state: State, seen: Observation, saving: Saving | None, now: datetime) -> Promise:
    promise, baseline = state.promise, seen.baseline
    since_lost = min(promise.since_lost + 1, FORGOTTEN)
    promise = promise.but(since_lost=since_lost)
    if since_lost == FORGOTTEN:
        promise = promise.but(lost=0, lost_since=None)
    if saving is None or baseline is None:
        return promise
    expected, assumed = baseline.saving, baseline.batch or 0.0
    if expected is None or expected <= 0 or (baseline.low is not None and baseline.low <= 0):
        return promise
    if saving.batch is not None and saving.batch < LEAST_BATCH * assumed:
        return promise
    share = keeps(seen.policy)
    wanted = share * expected
    lost = saving.share + Z * hypot(saving.error, share * baseline.error) < wanted
    return Promise(
        windows=promise.windows + 1,
        lost=promise.lost + 1 if lost else 0,
        kept=promise.kept + 1 if saving.share >= wanted else 0,
        lost_since=(promise.lost_since if promise.lost else now) if lost else None,
        since_lost=0 if lost else since_lost,
    )

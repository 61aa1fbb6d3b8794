"""Whether the active set harms, so that it must not serve: state in, protection out. Pure.

It is measured, or a fit reports it. A set that is out of service stays loaded, and comes back with its traffic or by a report.
"""

from __future__ import annotations

from datetime import datetime

from eldr.contract import POLICY_ELDR
from eldr_operator.drift.counts import Saving
from eldr_operator.drift.evidence import RAISE, Scores, Z
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Protection, State

RETURNS = 2
"""How often a set that was out of service comes back by itself."""
PROVED = 20
"""Windows in which such a set did better than chance in service, from which on it may come back as often again."""
WAITS = 20
"""Windows without drift that a set that is out of service waits for its traffic, before another one is fitted."""
MOST_SETS = 128
"""More than `refit.historyLimit` can be: what an EldrFit that exists has made is never forgotten."""


def is_replaced(state: State, spec: DriftSpec, seen: Observation) -> bool:
    """Tell whether JSQ is in effect instead of the set."""
    harms = state.digest is not None and state.protection.active
    return harms and gives_way(spec, seen.policy, chosen=seen.chosen)


def gives_way(spec: DriftSpec, policy: str, *, chosen: bool) -> bool:
    """Tell whether a set that harms goes out of service; one that ``spec.centroids.pin`` names does not."""
    return policy == POLICY_ELDR and not chosen and spec.mode == "Enabled"


def watch(state: State, spec: DriftSpec, saving: Saving | None, scores: Scores, now: datetime) -> Protection:
    """Take a window into account, which ends now, and the saving that was measured of the active set's placement."""
    protection, wanted = state.protection, spec.consecutive_windows
    differs = scores.latest is not None and scores.latest.value >= RAISE
    if protection.active:
        calm = protection.calm + 1 if scores.calm else 0
        left = protection.left or differs
        if left and calm >= wanted and protection.returns < RETURNS:
            return Protection(since=now, report=protection.report, returns=protection.returns + 1)
        # Only a set that goes on serving, pinned or under another policy, can be seen to harm no longer.
        better = protection.better if saving is None else protection.better + 1 if saving.share > 0 else 0
        if better >= wanted:
            return Protection(since=now, report=protection.report, returns=protection.returns)
        return protection.but(calm=calm, left=left, better=better)
    worse, better = protection.worse, protection.better
    if saving is not None:
        worse = worse + 1 if saving.share + Z * saving.error < 0 else 0
        better = 0 if worse else better + 1 if saving.share > 0 else better
    returns = 0 if better >= PROVED else protection.returns
    after = protection.but(worse=worse, better=min(better, PROVED), returns=returns)
    if worse < wanted:
        return after
    left = differs or state.drift.phase != "Quiet"
    return after.but(active=True, since=now, left=left, calm=0, better=0)


def believe(state: State, seen: Observation, now: datetime) -> Protection:
    """Believe a report on the active set: once where it harms, and where it does not if protection began before."""
    protection, report = state.protection, seen.report
    if report is None or state.digest is None:
        return protection
    if not report.harms:
        if not protection.active or (protection.since is not None and report.finished <= protection.since):
            return protection
        return Protection(since=now, report=protection.report, returns=protection.returns)
    if report.fit == protection.report:
        return protection
    after = protection.but(report=report.fit, left=protection.left or state.drift.phase != "Quiet")
    return after if after.active else after.but(active=True, since=now, calm=0, better=0)


def rest(state: State, seen: Observation) -> Protection:
    """Return it as it is while nobody looks: what is read now is no news later."""
    known = state.protection
    said = seen.report.fit if seen.report is not None and seen.report.harms else known.report
    return known.but(report=said, worse=0, calm=0, better=0)


def note_harm(state: State) -> State:
    """Remember whether the active set harms: it may be active again after another one."""
    if state.digest is None:
        return state
    others = tuple(digest for digest in state.harmful if digest != state.digest)
    harmful = (*others, state.digest)[-MOST_SETS:] if state.protection.active else others
    return state.but(harmful=harmful)


def waits_for_another(state: State) -> bool:
    """Tell whether a set that is out of service does not come back by itself, though there is no drift."""
    known = state.protection
    if known.waited >= WAITS:
        return True
    return state.drift.phase == "Quiet" and (not known.left or known.returns >= RETURNS)

"""What is said of drift in the status of a deployment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr_operator import clock
from eldr_operator.conditions import DRIFT_DETECTED, Condition
from eldr_operator.locality import drift_history
from eldr_operator.locality.outcome import Outcome
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_SAME = 0.5
"""Points: a saving that differs by less is no news, and would write the status with every look."""
_DRAFTS = "draftExpertsPercent"


def fields(cr: EldrDeployment, outcome: Outcome) -> Object:
    """Return the fields of ``status.locality`` that tell what placement saves, and whether traffic has changed."""
    seen, state = outcome.look.seen, outcome.memory.drift
    made: Object = _saving(cr.status.get("locality") or {}, outcome)
    if seen.baseline is not None and seen.baseline.saving is not None:
        made["predictedSavingPercent"] = _percent(seen.baseline.saving)
    if state.shown is not None:
        made |= {"driftScore": f"{state.shown.value:.2f}", "windowRequests": state.shown.requests}
    if outcome.memory.day:
        made["driftDay"] = drift_history.dump(outcome.memory.day)
    if state.drift.phase == "Detected" and state.drift.changed is not None:
        made["changedSince"] = clock.stamp(state.drift.changed)
    return made


def conditions(outcome: Outcome) -> tuple[Condition, Condition]:
    """Return CentroidsActive and DriftDetected; an active set that harms is more urgent than that it is active."""
    verdict = outcome.look.verdict
    drift = Condition(DRIFT_DETECTED, verdict.status, verdict.reason, verdict.message)
    decided, harm = outcome.look.decision.condition, verdict.harm
    if harm is None or decided.status != "True" or outcome.memory.table.active is None:
        return decided, drift
    reason, message = harm
    if decided.reason in {"PinNotFound", "PinNotAccepted"}:  # else nobody learns why nothing follows
        message = f"{message}. {decided.message}"
    status = "False" if outcome.memory.protective else "True"
    return Condition(decided.type, status, reason, message), drift


def _saving(before: Mapping[str, Any], outcome: Outcome) -> Object:
    saving = outcome.look.seen.saving
    if saving is None:
        return {}
    made: Object = {
        "savingPercent": _percent(saving.share),
        "savingErrorPercent": _percent(saving.error),
    }
    if _is_like(before.get("savingPercent"), saving.share):
        made = {name: before.get(name, shown) for name, shown in made.items()}
    if saving.drafts is not None:
        known = before.get(_DRAFTS)
        made[_DRAFTS] = known if _is_like(known, saving.drafts) else _percent(saving.drafts)
    return made


def _is_like(shown: Any, share: float) -> bool:
    try:
        return abs(float(shown) - 100 * share) < _SAME
    except (TypeError, ValueError):
        return False


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"

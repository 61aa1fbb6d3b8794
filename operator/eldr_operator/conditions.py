"""Conditions in the form of metav1.Condition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import clock

_MESSAGE_CHARACTERS = 4096

CENTROIDS_ACTIVE = "CentroidsActive"
DRIFT_DETECTED = "DriftDetected"
SIGNATURES_REPORTED = "SignaturesReported"
UPDATE_AVAILABLE = "UpdateAvailable"
MODEL_READY = "ModelReady"
"""Whether the claim of ``spec.model.cache`` holds the model; only where the operator downloads it."""
SUCCEEDED = "Succeeded"
"""Of an EldrFit."""
BLOCKED = "Blocked"
"""Of an EldrFit whose set is not activated by itself any more."""
REGRESSES = "Regresses"
"""Of an EldrFit: whether its set harmed when it was active last."""

SYMPTOMS = {"PodsNotReady", "RolloutInProgress", "RolloutPaused"}
"""Reasons of a role that say what is missing, not why."""
NO_SET = "none"
"""In ``status.history`` in place of a fit, where a set was taken out of use and no other serves."""
ROLLED_BACK = "RolledBack"
"""In ``status.history``: why the set before serves again."""
PROTECTIVE, SERVES_AGAIN = "Protective", "ServesAgain"
"""In ``status.history``: the active set went out of service because it harms, and came back."""


class Condition(NamedTuple):
    """One observation; adjectives or past tense in ``type``, CamelCase in ``reason``."""

    type: str
    status: str
    reason: str
    message: str


class Refusal(NamedTuple):
    """Why pods cannot be created, and since when that is told; an empty message where nothing says so."""

    message: str = ""
    since: datetime | None = None


NOT_REFUSED = Refusal()


def condition_of(live: Mapping[str, Any] | None, type_: str) -> Mapping[str, Any]:
    """Return a condition of an object, as in its status; empty if it has none of that type."""
    conditions = ((live or {}).get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == type_), {})


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod has ended for good, as one that was evicted: it may stay for long, and holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in contract.ENDED_PHASES


def is_observed(live: Mapping[str, Any]) -> bool:
    """Tell whether the status of a workload is that of its newest spec."""
    status = live.get("status") or {}
    return bool(status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1))


def merged(
    previous: Iterable[Mapping[str, Any]], current: Iterable[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return conditions as JSON; lastTransitionTime moves only when ``status`` flips.

    Parameters
    ----------
    previous : iterable of mapping
        Conditions of the live status.
    current : iterable of Condition
        All that are to be written, in order.
    generation : int
        What they were observed for.
    """
    before = {condition["type"]: condition for condition in previous}
    made = []
    for condition in current:
        old = before.get(condition.type, {})
        same = old.get("status") == condition.status
        made.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:_MESSAGE_CHARACTERS],
                "lastTransitionTime": old["lastTransitionTime"] if same else clock.stamp(now),
                "observedGeneration": generation,
            }
        )
    return made

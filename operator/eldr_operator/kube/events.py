"""Kubernetes Events: one per change of state, found by comparing two statuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import clock
from eldr_operator.conditions import (
    CENTROIDS_ACTIVE,
    DRIFT_DETECTED,
    MODEL_READY,
    NO_SET,
    ROLLED_BACK,
    SIGNATURES_REPORTED,
    SUCCEEDED,
    SYMPTOMS,
)
from eldr_operator.models import EldrDeployment, EldrFit
from eldr_operator.unwritten import FOREIGN

Object = dict[str, Any]
Status = Mapping[str, Any]

_MESSAGE_CHARACTERS = 1024
_CENTROID_WARNINGS = {
    *("Refused", "AckTimeout", "PinNotFound", "PinNotAccepted", "RoutersUnreachable", "RouterTokenRefused")
}
_HARMS = {"Protective", "PinnedRegresses", "PriorDecays", "Regresses"}
"""Reasons of CentroidsActive while the active set saves less than JSQ would."""


_ROLES = {"PrefillReady", "DecodeReady", "RouterReady"}
_SAID_ANEW = {"ConfigValid": "False", "Ready": "Unknown"}
"""Statuses of which each other message is an Event."""


class Event(NamedTuple):
    """What happened; ``type`` is Normal or Warning."""

    type: str
    reason: str
    message: str


def of_deployment(before: Status, after: Status) -> list[Event]:
    """Return what happened to a deployment between two statuses."""
    old, new = _conditions(before), _conditions(after)
    known = {entry["epoch"] for entry in before.get("history", ())}
    events = []
    if "model" in after and "model" not in before:
        events.append(Event("Normal", "Created", f"its workloads were created; model {after['model']}"))
    events += [_activation(entry) for entry in after.get("history", ()) if entry["epoch"] not in known]
    events += _of_policy(before.get("router") or {}, after.get("router") or {})
    for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE, contract.ROLE_ROUTER):
        events += _of_role(role, before.get(role) or {}, after.get(role) or {})
    for kind, condition in new.items():
        was = old.get(kind, {})
        turned = was.get("status") != condition["status"]
        if kind == "Ready" and turned and condition["status"] == "True":
            events.append(Event("Normal", "Ready", condition["message"]))
        elif (kind == "Available" and turned and was and condition["status"] == "False") or (
            _SAID_ANEW.get(kind) == condition["status"] and was.get("message") != condition["message"]
        ):
            events.append(Event("Warning", condition["reason"], condition["message"]))
        elif (
            kind == "Progressing"
            and condition["reason"] in {ROLLED_BACK, "ProgressDeadlineExceeded", FOREIGN}
            and was.get("reason") != condition["reason"]
        ):
            of_rollout = "" if condition["reason"] == FOREIGN else "Rollout"
            events.append(Event("Warning", f"{of_rollout}{condition['reason']}", condition["message"]))
        elif (
            kind == CENTROIDS_ACTIVE
            and condition["reason"] in _CENTROID_WARNINGS
            and was.get("reason") != condition["reason"]
        ):
            events.append(Event("Warning", f"Centroids{condition['reason']}", condition["message"]))
        elif kind == CENTROIDS_ACTIVE and was.get("reason") != condition["reason"]:
            if condition["reason"] in _HARMS:
                events.append(Event("Warning", condition["reason"], condition["message"]))
            elif was.get("reason") in _HARMS:
                events.append(Event("Normal", "CentroidsServeAgain", condition["message"]))
        elif kind == DRIFT_DETECTED and condition["status"] == "True" and turned:
            events.append(Event("Warning", DRIFT_DETECTED, condition["message"]))
        elif kind == DRIFT_DETECTED and turned and was.get("status") == "True":
            other = "another set serves; " if condition["reason"] == "Gathering" else ""
            events.append(Event("Normal", "DriftOver", f"{other}{condition['message']}"))
        elif kind == MODEL_READY and condition["reason"] not in {was.get("reason"), "Downloading"}:
            level = "Normal" if condition["status"] == "True" else "Warning"
            events.append(Event(level, f"Model{condition['reason']}", condition["message"]))
        elif kind == SIGNATURES_REPORTED and turned and condition["status"] == "False":
            events.append(Event("Warning", f"Signatures{condition['reason']}", condition["message"]))
        elif (
            kind in _ROLES
            and condition["status"] == "False"
            and condition["reason"] not in {was.get("reason"), *SYMPTOMS}
        ):
            events.append(Event("Warning", condition["reason"], condition["message"]))
    return [*dict.fromkeys(events)]  # routers beside prefill engines share their cause


def _of_policy(before: Status, after: Status) -> list[Event]:
    """Return a change of the policy that routers use; while they differ, it is not over."""
    was, now = before.get("policyInEffect", ""), after.get("policyInEffect", "")
    if not was or not now or was == now or "," in now:
        return []
    return [Event("Normal", "PolicyChanged", f"routers place with {now}; before: {was}")]


def _of_role(role: str, before: Status, after: Status) -> list[Event]:
    """Return changes of a role's revision and replicas."""
    events = []
    was, now = before.get("revision"), after.get("revision")
    if was and now and was != now:
        events.append(Event("Normal", "RolloutStarted", f"{role}: pods go from revision {was} to {now}"))
    has_pods = role != contract.ROLE_ROUTER or now  # routers beside prefill engines have no pods of their own
    if before and after and has_pods and before.get("desired") != after.get("desired"):
        by = after.get("scaledBy", "the EldrDeployment")
        text = f"{role}: from {before.get('desired')} to {after.get('desired')} replicas, by {by}"
        events.append(Event("Normal", "Scaled", text))
    asked = before.get("specReplicas"), after.get("specReplicas")
    if None not in asked and asked[0] != asked[1]:
        text = (
            f"spec.{role}.replicas {asked[1]} is ignored: {after.get('scaledBy')} has set {after.get('desired')} on the EldrScaler; "
            f"to hand the replicas back to the spec, give that the annotation {contract.ANNOTATION_REPLICAS}={contract.HANDED_BACK}"
        )
        events.append(Event("Warning", "SpecReplicasIgnored", text))
    return events


def completed(status: Status) -> Event | None:
    """Return the event of a rollout that is over; None while it is not."""
    progressing = _conditions(status).get("Progressing", {})
    if progressing.get("reason") != "RolloutComplete":
        return None
    return Event("Normal", "RolloutCompleted", progressing["message"])


def _activation(entry: Mapping[str, Any]) -> Event:
    epoch, fit, reason = entry["epoch"], entry["fit"], entry["reason"]
    if fit == NO_SET:
        text = f"epoch {epoch}: no centroid set serves ({reason})"
        return Event("Warning", f"Centroids{reason}", text)
    text = f"epoch {epoch}: routers use the set of EldrFit {fit} ({reason})"
    return Event("Warning" if reason == ROLLED_BACK else "Normal", "CentroidsActivated", text)


def of_fit(before: Status, after: Status) -> list[Event]:
    """Return what happened to a fit between two statuses."""
    old, new = _conditions(before).get(SUCCEEDED, {}), _conditions(after).get(SUCCEEDED, {})
    if not new or old.get("reason") == new["reason"]:
        return []
    return [Event("Warning" if new["status"] == "False" else "Normal", f"Fit{new['reason']}", new["message"])]


def undone(what: str) -> Event:
    """Return the event of a foreign change that was undone."""
    return Event(
        "Warning",
        "ForeignChangeUndone",
        f"{what} is restored: the operator writes this object; use the EldrDeployment, and its EldrScalers for replicas",
    )


def managed_elsewhere(other: str) -> Event:
    """Return the event of a deployment that another release serves."""
    text = (
        f"release {other} serves this namespace; the release that writes this Event changes nothing here. "
        "Uninstall one of them, or give each its own watchNamespaces"
    )
    return Event("Warning", "ManagedElsewhere", text)


def manifest(about: EldrDeployment | EldrFit, event: Event, now: datetime, count: int = 1) -> Object:
    """Return the Event object; ``count`` is how often it happened since it was told last."""
    kind = contract.KIND_DEPLOYMENT if isinstance(about, EldrDeployment) else contract.KIND_FIT
    metadata = about.metadata
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata.name}.", "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": contract.API_VERSION,
            "kind": kind,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_CHARACTERS],
        "source": {"component": contract.FIELD_MANAGER},
        "firstTimestamp": clock.stamp(now),
        "lastTimestamp": clock.stamp(now),
        "count": count,
    }


def _conditions(status: Status) -> dict[str, Mapping[str, Any]]:
    conditions: Iterable[Mapping[str, Any]] = status.get("conditions", ())
    return {condition["type"]: condition for condition in conditions}

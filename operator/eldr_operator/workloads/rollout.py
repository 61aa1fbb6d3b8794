"""How pods with a new template take the place of those that run. Pure.

References
----------
.. [1] Kubernetes API, DeploymentStrategy and StatefulSetUpdateStrategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from eldr_operator import clock
from eldr_operator.models import DecodeRolloutSpec, RolloutSpec

Object = dict[str, Any]

_MARGIN_SECONDS = 600
"""Kubernetes' own deadline of a rollout."""
PATIENCE_SECONDS = 60.0
"""How long the pod that comes on top may find no node, before another one makes room for it."""


def of_deployment(
    spec: RolloutSpec, live: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]], now: datetime
) -> Object:
    """Return what the spec of a Deployment says of its rollouts.

    With ``maxSurge: Auto`` a new pod comes first, as long as there is room for one. Otherwise an old one makes room, until the
    rollout is over: the Deployment itself remembers that.

    Parameters
    ----------
    live : mapping or None
        The Deployment as it is.
    pods : iterable of mapping
        Of the role.
    """
    surge, unavailable = spec.max_surge, spec.max_unavailable
    if surge == "Auto":
        fits = not any(_finds_no_node(pod, now) for pod in pods) and (live is None or not _makes_room(live))
        surge, unavailable = (1, unavailable) if fits else (0, max(1, unavailable))
    strategy = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }
    # a Deployment that is paused before it has pods makes none
    runs = live is not None and (live.get("status") or {}).get("replicas", 0) > 0
    return {"strategy": strategy, "paused": spec.pause == "Enabled" and runs}


def of_stateful_set(spec: DecodeRolloutSpec, replicas: int) -> Object:
    """Return what the spec of a StatefulSet says of its rollouts: one pod at a time, the highest ordinal first."""
    partition = replicas if spec.pause == "Enabled" else spec.partition
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}}


def has_gaps(live: Mapping[str, Any] | None) -> bool:
    """Tell whether pods of a Deployment end before their successors start."""
    return live is not None and _surge(live) == 0


def late(live: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]], now: datetime) -> str:
    """Return what of a rollout is not ready though its time is over; empty if nothing is.

    A Deployment says so itself. Of a StatefulSet these are pods with its newest template.
    """
    status = (live or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("reason") == "ProgressDeadlineExceeded":
            return str(condition.get("message", ""))
    newest = status.get("updateRevision")
    if live is None or not newest:
        return ""
    allowed = deadline_seconds(live["spec"]["template"])
    for pod in pods:
        metadata = pod["metadata"]
        made = clock.read(metadata.get("creationTimestamp"))
        is_newest = (metadata.get("labels") or {}).get("controller-revision-hash") == newest
        if is_newest and not _is_ready(pod) and made and (now - made).total_seconds() > allowed:
            return f"pod {metadata['name']} is not ready {allowed} s after it was created"
    return ""


def deadline_seconds(template: Mapping[str, Any]) -> int:
    """Return how long a pod may take to get ready: the start-up of its engine, on top of scheduling and pulling its image."""
    containers = template["spec"].get("containers") or ()
    probes = [each.get("startupProbe") or {} for each in containers]
    return _MARGIN_SECONDS + max(
        (int(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)) for probe in probes if probe),
        default=0,
    )


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _makes_room(live: Mapping[str, Any]) -> bool:
    """Tell whether pods of a rollout that is not over have begun to make room."""
    status, wanted = live.get("status") or {}, live["spec"].get("replicas", 1)
    is_seen = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1)
    is_over = status.get("updatedReplicas", 0) == status.get("replicas", 0) == wanted
    return _surge(live) == 0 and not (is_seen and is_over)


def _surge(live: Mapping[str, Any]) -> object:
    return (((live.get("spec") or {}).get("strategy") or {}).get("rollingUpdate") or {}).get("maxSurge")


def _finds_no_node(pod: Mapping[str, Any], now: datetime) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            since = clock.read(condition.get("lastTransitionTime"))
            return since is not None and (now - since).total_seconds() >= PATIENCE_SECONDS
    return False

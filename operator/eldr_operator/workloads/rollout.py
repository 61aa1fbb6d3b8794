"""How pods with a new template take the place of those that run. Pure.

References
----------
.. [1] Kubernetes API, DeploymentStrategy and StatefulSetUpdateStrategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from eldr_operator import clock
from eldr_operator.conditions import NOT_REFUSED, Refusal, condition_of, has_ended, is_observed
from eldr_operator.models import DecodeRolloutSpec, PrefillRolloutSpec, RolloutSpec
from eldr_operator.workloads import ended, places

Object = dict[str, Any]

_MARGIN_SECONDS = 600
"""Kubernetes' own deadline of a rollout."""
_CRASHES = 3
"""After which a pod that is not available has failed, whatever time it has left."""
_LONGEST_SECONDS = (1 << 31) - 1
"""That a Deployment takes; a probe that never gives up allows more, and no clock can reckon with it."""
MIN_READY_SECONDS = 60
"""How long an engine with accelerators must stay ready before a rollout goes on, unless the spec says otherwise."""
PATIENCE_SECONDS = 60.0
"""How long the pod that comes on top may find no node, before another one makes room for it."""


def of_deployment(
    spec: PrefillRolloutSpec,
    live: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
    refusal: Refusal = NOT_REFUSED,
) -> Object:
    """Return what the spec of a Deployment says of its rollouts.

    With ``maxSurge: Auto`` a new pod comes first, as long as a node and quotas have room for one. Otherwise an old one makes room, until the
    rollout is over: the Deployment itself remembers that.

    Parameters
    ----------
    live : mapping or None
        The Deployment as it is.
    pods : sequence of mapping
        Of the role.
    refusal : Refusal
        Why pods cannot be created, and since when in this rollout.
    """
    surge, unavailable = spec.max_surge, spec.max_unavailable
    pods = [pod for pod in pods if not has_ended(pod)]
    if surge == "Auto":
        waiting = sum(moment <= now for moment in makes_room_at(live, pods, refusal))
        if waiting or (live is not None and _makes_room(live)):
            surge, unavailable = 0, max(1, unavailable) + _missing(live, pods, waiting, now)
        else:
            surge = 1
    strategy = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
    }
    # a Deployment that is paused before it has pods makes none; one that lost them meanwhile makes them as they were
    runs = live is not None and (
        live["spec"].get("paused") or (live.get("status") or {}).get("replicas", 0) > 0
    )
    return {"strategy": strategy, "paused": spec.pause == "Enabled" and bool(runs)}


def makes_room_at(
    live: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], refusal: Refusal = NOT_REFUSED
) -> list[datetime]:
    """Return when another pod ends for each one that finds no node, or no room in a quota, and would start in its place."""
    others = [pod["spec"] for pod in pods if pod["spec"].get("nodeName") and not has_ended(pod)]
    waiting = ((pod, _unschedulable(pod)) for pod in pods if "deletionTimestamp" not in pod["metadata"])
    since = [
        pending[0]
        for pod, pending in waiting
        if pending is not None and places.fits_on_node(pending[1], pod["spec"], others)
    ]
    if live is not None and refusal.since:
        template = live["spec"]["template"]["spec"]
        since += [refusal.since] * places.fits_in_quota(refusal.message, template, others)
    return [moment + timedelta(seconds=PATIENCE_SECONDS) for moment in since]


def of_stateful_set(spec: DecodeRolloutSpec, replicas: int) -> Object:
    """Return what the spec of a StatefulSet says of its rollouts: one pod at a time, the highest ordinal first."""
    partition = replicas if spec.pause == "Enabled" else spec.partition
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}}


def paced(min_ready_seconds: int) -> Object:
    """Return the field of a workload that says how long a pod must stay ready to be available; none for 0, as Kubernetes stores it."""
    return {"minReadySeconds": min_ready_seconds} if min_ready_seconds else {}


def is_available(live: Mapping[str, Any], pod: Mapping[str, Any], now: datetime) -> bool:
    """Tell whether a pod of a workload has been ready for as long as the workload asks for."""
    ready, seconds = condition_of(pod, "Ready"), live["spec"].get("minReadySeconds", 0)
    if ready.get("status") != "True" or not seconds:
        return ready.get("status") == "True"
    since = clock.read(ready.get("lastTransitionTime"))
    return since is not None and (now - since).total_seconds() >= seconds


def has_given_up(pod: Mapping[str, Any]) -> bool:
    """Tell whether a container of a pod has ended so often, or for such a reason, that it will not get ready by itself."""
    return not has_ended(pod) and any(
        container.get("restartCount", 0) >= _CRASHES or ended.refusal_of(container)
        for container in ended.containers(pod)
    )


def has_gaps(live: Mapping[str, Any] | None) -> bool:
    """Tell whether pods of a Deployment end before their successors start."""
    return live is not None and _surge(live) == 0


def late(
    spec: RolloutSpec,
    live: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    now: datetime,
    refusal: Refusal = NOT_REFUSED,
) -> str:
    """Return what of a rollout is not ready though its time is over; empty if nothing is.

    A Deployment says so itself. Of a StatefulSet these are pods with its newest template, and those that cannot be created.

    Parameters
    ----------
    refusal : Refusal
        Why pods cannot be created, and since when in this rollout.
    """
    status = (live or {}).get("status") or {}
    progressing = condition_of(live, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return str(progressing.get("message", ""))
    newest = status.get("updateRevision")
    if live is None or not newest:
        return ""
    allowed = deadline_seconds(spec, live["spec"]["template"])
    for pod in pods:
        metadata = pod["metadata"]
        is_newest = (metadata.get("labels") or {}).get("controller-revision-hash") == newest
        since = unready_since(pod)
        if (
            is_newest
            and "deletionTimestamp" not in metadata
            and since
            and (now - since).total_seconds() > allowed
        ):
            return f"pod {metadata['name']} has not been ready for {allowed} s"
    if refusal.since and (now - refusal.since).total_seconds() > allowed:
        return f"no pod has got ready for {allowed} s: {refusal.message}"
    return ""


def refusal_of(live: Mapping[str, Any] | None) -> Refusal:
    """Return why pods of a Deployment cannot be created, as it says itself."""
    failure = condition_of(live, "ReplicaFailure")
    if failure.get("status") != "True":
        return NOT_REFUSED
    return Refusal(str(failure.get("message", "")), clock.read(failure.get("lastTransitionTime")))


def of_rollout(refusal: Refusal, begun: datetime | None, pods: Iterable[Mapping[str, Any]]) -> Refusal:
    """Return a refusal with the time since when it keeps a rollout from going on.

    What refused pods before a rollout began, or before one of them became ready or unready, was something else.

    Parameters
    ----------
    begun : datetime or None
        When the rollout began, where that is known.
    pods : iterable
        Of the role.
    """
    if refusal.since is None:
        return refusal
    moments = (clock.read(condition_of(pod, "Ready").get("lastTransitionTime")) for pod in pods)
    return refusal._replace(since=max(filter(None, [refusal.since, begun, *moments])))


def deadline_seconds(spec: RolloutSpec, template: Mapping[str, Any], *, beside: int = 0) -> int:
    """Return how long a pod may take to get ready: the start-up of its engine, on top of scheduling and pulling its image.

    Parameters
    ----------
    beside : int
        Seconds to add.
    """
    if spec.progress_deadline_seconds is not None:
        return min(spec.progress_deadline_seconds + beside, _LONGEST_SECONDS)
    containers = template["spec"].get("containers") or ()
    probes = [each.get("startupProbe") or {} for each in containers]
    allowed = max(
        (int(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)) for probe in probes if probe),
        default=0,
    )
    return min(_MARGIN_SECONDS + allowed + beside, _LONGEST_SECONDS)


def unready_since(pod: Mapping[str, Any]) -> datetime | None:
    """Return since when a pod is not ready; None if it is."""
    ready = condition_of(pod, "Ready")
    if ready.get("status") == "True":
        return None
    # a pod that a node has just taken may have waited for it for long
    since = ready or condition_of(pod, "PodScheduled")
    return clock.read(since.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))


def waiting_in_vain(pods: Iterable[Mapping[str, Any]], now: datetime) -> int:
    """Return how many pods have found no node for so long that nobody should count on them."""
    return sum(seconds <= 0 for seconds in _left(pods, now))


def is_refused(refusal: Refusal, now: datetime) -> bool:
    """Tell whether pods cannot be created for so long that nobody should count on them."""
    return refusal.since is not None and (now - refusal.since).total_seconds() >= PATIENCE_SECONDS


def unscheduled(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scheduler's condition of a pod that no node has room for; empty for one that runs, whatever was said before."""
    scheduled, phase = condition_of(pod, "PodScheduled"), (pod.get("status") or {}).get("phase", "Pending")
    return scheduled if phase == "Pending" and scheduled.get("reason") == "Unschedulable" else {}


def _makes_room(live: Mapping[str, Any]) -> bool:
    """Tell whether pods of a rollout that is not over have begun to make room."""
    status, wanted = live.get("status") or {}, live["spec"].get("replicas", 1)
    is_over = status.get("updatedReplicas", 0) == status.get("replicas", 0) == wanted
    return _surge(live) == 0 and not (is_observed(live) and is_over)


def _surge(live: Mapping[str, Any]) -> object:
    return (((live.get("spec") or {}).get("strategy") or {}).get("rollingUpdate") or {}).get("maxSurge")


def seconds_left(pods: Iterable[Mapping[str, Any]], now: datetime) -> list[float]:
    """Return when each pod that finds no node will have waited for long enough."""
    return [seconds + 1.0 for seconds in _left(pods, now) if seconds > 0]  # times are told to the second


def _left(pods: Iterable[Mapping[str, Any]], now: datetime) -> list[float]:
    pending = filter(None, map(_unschedulable, pods))
    return [PATIENCE_SECONDS - (now - since).total_seconds() for since, _ in pending]


def _missing(
    live: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], waiting: int, now: datetime
) -> int:
    """Return how many replicas a rollout that stands still must do without, so that another pod may end.

    They use up what may be missing, although they never had a node. One replica is always left: of a pod that ends, the place
    may not have been taken yet.
    """
    replicas = (live or {}).get("spec", {}).get("replicas", 0)
    progressing = condition_of(live, "Progressing")
    changed = clock.read(progressing.get("lastUpdateTime"))
    moves = (
        changed is None
        or (now - changed).total_seconds() < PATIENCE_SECONDS
        or any(
            "deletionTimestamp" in pod["metadata"]
            or (pod["spec"].get("nodeName") and not (live and is_available(live, pod, now)))
            for pod in pods
        )
    )
    extra = waiting - max(0, len(pods) - replicas)
    return 0 if moves else max(0, min(extra, replicas - 2))


def _unschedulable(pod: Mapping[str, Any]) -> tuple[datetime, str] | None:
    """Return since when a pod has found no node, and what the scheduler says of it."""
    scheduled = unscheduled(pod)
    since = clock.read(scheduled.get("lastTransitionTime"))
    return None if since is None else (since, str(scheduled.get("message", "")))

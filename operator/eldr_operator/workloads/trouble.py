"""Why pods are not ready, as far as Kubernetes reports it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from eldr_operator import clock
from eldr_operator.conditions import Condition, condition_of, has_ended
from eldr_operator.workloads import ended, rollout

Object = Mapping[str, Any]

CLAIM_REMEDY = "create the claim in this namespace, or correct its name in spec.model or podTemplate, or its storage class"
_WAITING = {
    "ImagePullBackOff": "ImagePull",
    "ErrImagePull": "ImagePull",
    "InvalidImageName": "ImagePull",
    "CrashLoopBackOff": "CrashLoop",
    "CreateContainerConfigError": "ContainerConfig",
    "CreateContainerError": "ContainerConfig",
}
_GRACE_SECONDS = 5.0
"""That a kubelet takes to remove a pod whose grace period is over."""
_OFTEN = 2
"""Restarts after which a container that is not ready crashes in a loop, also while it runs for a moment."""


def of_pods(type_: str, pods: Sequence[Object], now: datetime) -> Condition | None:
    """Return why pods of a role are not ready; None where Kubernetes reports nothing."""
    stuck = (_stuck(type_, pod, now) for pod in pods)
    return next(filter(None, (*stuck, *(of_pod(type_, pod) for pod in pods))), None)


def of_pod(type_: str, pod: Object) -> Condition | None:
    """Return why a pod is not ready; None where Kubernetes reports nothing, or the pod has ended for good."""
    if has_ended(pod):
        return None
    name = pod["metadata"]["name"]
    if scheduled := rollout.unscheduled(pod):
        message = f"pod {name}: {scheduled.get('message', '')}"
        if "persistentvolumeclaim" in message.lower():
            return Condition(type_, "False", "ClaimPending", f"{message}; {CLAIM_REMEDY}")
        return Condition(type_, "False", "InsufficientCapacity", message)
    return next(filter(None, (_of_container(type_, name, each) for each in ended.containers(pod))), None)


def seconds_until_stuck(pods: Sequence[Object], now: datetime) -> list[float]:
    """Return when each terminating pod will have exceeded its grace period."""
    left = [(at - now).total_seconds() for at in map(_stuck_at, pods) if at is not None]
    return [seconds + 1.0 for seconds in left if seconds >= 0]  # times have whole seconds


def _of_container(type_: str, pod: str, container: Object) -> Condition | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    # a container that crashes runs in between: its condition must not change with each attempt
    crashes = (
        container.get("restartCount", 0) >= _OFTEN
        and not container.get("ready")
        and bool(ended.last(container).get("exitCode"))
    )
    reason = _WAITING.get(waiting.get("reason", ""), "CrashLoop" if crashes else "")
    if not reason:
        return None
    if refusal := ended.refusal_of(container):
        return Condition(type_, "False", "EngineRefused", f"pod {pod}: {refusal}")
    # The kubelet's message holds a growing delay; repeating it would rewrite the status for ever.
    text = f"container {container['name']} of pod {pod}: {waiting.get('reason', 'CrashLoopBackOff')}"
    if reason == "CrashLoop":
        why = ended.description(container)
        logs = f"see kubectl logs {pod} -c {container['name']} --previous"
        return Condition(
            type_, "False", reason, f"{text}; it ended with {why}; {logs}" if why else f"{text}; {logs}"
        )
    return Condition(type_, "False", reason, f"{text}; see kubectl describe pod {pod}")


def _stuck_at(pod: Object) -> datetime | None:
    """Return when a pod that is being deleted will have exceeded its grace period; None for others."""
    at = clock.read(pod["metadata"].get("deletionTimestamp"))
    return None if at is None or has_ended(pod) else at + timedelta(seconds=_GRACE_SECONDS)


def _stuck(type_: str, pod: Object, now: datetime) -> Condition | None:
    """Return that a pod is still there after its grace period, as one whose node is lost."""
    metadata, at = pod["metadata"], _stuck_at(pod)
    if at is None or now < at:
        return None
    name, node = metadata["name"], (pod.get("spec") or {}).get("nodeName", "")
    deleted = at - timedelta(seconds=_GRACE_SECONDS + metadata.get("deletionGracePeriodSeconds", 0))
    text = f"pod {name} on node {node or '(none)'} is Terminating since {clock.stamp(deleted)}, beyond its grace period"
    if finalizers := metadata.get("finalizers"):
        return Condition(
            type_, "False", "PodStuck", f"{text}; it waits for finalizers {', '.join(finalizers)}"
        )
    if (
        condition_of(pod, "Ready").get("reason") == "NodeNotReady"
        or (pod.get("status") or {}).get("reason") == "NodeLost"
    ):
        text += "; the node does not answer"
    remedy = (
        f"if the node is lost, delete it (kubectl delete node {node}), or taint it "
        f"(kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute); "
        "only then can Kubernetes replace the pod"
    )
    return Condition(type_, "False", "PodStuck", f"{text}; {remedy}")

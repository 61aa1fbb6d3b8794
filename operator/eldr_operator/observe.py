"""Live children -> what they amount to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from eldr import contract
from eldr_operator import clock

Object = Mapping[str, Any]

_WAITING = {
    "ImagePullBackOff": "ImagePull",
    "ErrImagePull": "ImagePull",
    "InvalidImageName": "ImagePull",
    "CrashLoopBackOff": "CrashLoop",
    "CreateContainerConfigError": "ContainerConfig",
    "CreateContainerError": "ContainerConfig",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why pods of a role are not ready, as far as Kubernetes says."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Role:
    """Pods of one role.

    Parameters
    ----------
    desired, ready, existing : int
    is_current : bool
        Whether every pod wanted runs the newest template.
    trouble : Trouble or None
    """

    desired: int
    ready: int = 0
    existing: int = 0
    is_current: bool = False
    trouble: Trouble | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all pods wanted are ready with the newest template."""
        return self.is_current and self.ready >= self.desired


@dataclass(frozen=True, slots=True)
class RouterPod:
    """A ready router that is not ending."""

    name: str
    address: str
    ready_since: datetime | None


def role(workload: Object | None, desired: int, pods: Iterable[Object]) -> Role:
    """Sum up a Deployment or StatefulSet and its pods."""
    if workload is None:
        return Role(desired)
    status = workload.get("status") or {}
    seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 1)
    current = status.get("updatedReplicas", 0) >= desired and seen
    return Role(
        desired=desired,
        ready=min(status.get("readyReplicas", 0), desired),
        existing=status.get("replicas", 0),
        is_current=current and status.get("replicas", 0) <= desired,
        trouble=_refused(status) or next(filter(None, map(_trouble, pods)), None),
    )


def of_role(pods: Iterable[Object], name: str) -> list[Object]:
    """Return the pods of a role, by name."""
    found = [pod for pod in pods if pod["metadata"].get("labels", {}).get(contract.LABEL_ROLE) == name]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def ready_routers(pods: Iterable[Object]) -> list[RouterPod]:
    """Return the routers that count for an activation."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        if metadata.get("labels", {}).get(contract.LABEL_ROUTER) != "true" or metadata.get(
            "deletionTimestamp"
        ):
            continue
        container = _container(status, contract.CONTAINER_ROUTER)
        if container.get("ready") and status.get("podIP"):
            started = container.get("state", {}).get("running", {}).get("startedAt")
            found.append(RouterPod(metadata["name"], status["podIP"], clock.read(started)))
    return sorted(found, key=lambda router: router.name)


def _container(status: Object, name: str) -> Object:
    # Native sidecars are init containers.
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(key) or ():
            if container.get("name") == name:
                found: Object = container
                return found
    return {}


def _refused(status: Object) -> Trouble | None:
    for condition in status.get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Trouble("PodsRefused", condition.get("message", ""))
    return None


def _trouble(pod: Object) -> Trouble | None:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Trouble("InsufficientCapacity", f"pod {name}: {condition.get('message', '')}")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if reason := _WAITING.get(waiting.get("reason", "")):
            # The kubelet's message holds a growing delay; repeating it would rewrite the status for ever.
            text = f"container {container['name']} of pod {name}: {waiting['reason']}; see kubectl describe pod {name}"
            return Trouble(reason, text)
    return None

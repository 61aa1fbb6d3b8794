"""A pod's status from the states of its containers. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eldr_kube.agent.state import ContainerState

Object = dict[str, Any]
HOST_ADDRESS = "127.0.0.1"


@dataclass(slots=True)
class PodState:
    """A pod's state.

    Attributes
    ----------
    initial, main : sequence of ContainerState
        Init containers with sidecars, and containers.
    begun : str
        Timestamp of the pod's start.
    initialized : bool
        Whether the main containers may run.
    ending : bool
        Whether the pod is being stopped, so that nothing starts again.
    failure : tuple of (reason, message) or None
        Why the pod as a whole has failed.
    """

    initial: Sequence[ContainerState]
    main: Sequence[ContainerState]
    address: str
    begun: str
    initialized: bool = False
    ending: bool = False
    failure: tuple[str, str] | None = None


def phase(pod: PodState) -> str:
    """Return a pod's phase."""
    processes = [c for c in [*pod.initial, *pod.main] if c.running]
    if pod.ending and not processes:
        ended = all(c.final_code == 0 for c in pod.main)
        return "Succeeded" if pod.initialized and ended and not pod.failure else "Failed"
    if not pod.initialized:
        broken = any(c.over and c.exit_code for c in pod.initial)
        return "Failed" if broken and not processes else "Pending"
    if all(c.over for c in pod.main) and not processes:
        return "Failed" if any(c.exit_code for c in pod.main) else "Succeeded"
    return "Running"


def container_status(container: ContainerState) -> Object:
    """Return one entry of ``containerStatuses``."""
    done = container.init and not container.sidecar and container.exit_code == 0
    return {
        "name": container.name,
        "image": container.spec["image"],
        "imageID": container.spec["image"],
        "ready": container.ready or done,
        "started": container.started,
        "restartCount": container.restarts,
        "state": container.current,
        "lastState": container.last,
    }


def pod_status(pod: PodState, manifest: Object, now: str) -> Object:
    """Return what to write into a pod's status; transition times move only when a condition changes.

    Parameters
    ----------
    manifest : dict
        The pod as the API server has it: old conditions and readiness gates.
    now : str
        Timestamp of this moment.
    """
    old = {item["type"]: item for item in manifest.get("status", {}).get("conditions", [])}
    current = phase(pod)
    values = {
        "PodReadyToStartContainers": (True, ""),
        "Initialized": _initialized(pod, current),
        "ContainersReady": (containers := _containers_ready(pod, current)),
        "Ready": _ready(containers, manifest, old),
        "PodScheduled": (True, ""),
    }
    status: Object = {
        "phase": current,
        "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "podIP": pod.address,
        "podIPs": [{"ip": pod.address}],
        "startTime": pod.begun,
        "conditions": [_condition(kind, *value, old.get(kind, {}), now) for kind, value in values.items()],
        "initContainerStatuses": [container_status(c) for c in pod.initial],
        "containerStatuses": [container_status(c) for c in pod.main],
    }
    if pod.failure:
        status |= {"reason": pod.failure[0], "message": pod.failure[1]}
    return status


def _initialized(pod: PodState, current: str) -> tuple[bool, str]:
    if pod.initialized:
        return True, "PodCompleted" if current == "Succeeded" else ""
    waiting = [c.name for c in pod.initial if c.exit_code != 0 and not (c.sidecar and c.started)]
    return False, f"ContainersNotInitialized: containers with incomplete status: [{' '.join(waiting)}]"


def _containers_ready(pod: PodState, current: str) -> tuple[bool, str]:
    if current in {"Succeeded", "Failed"}:
        return False, "PodCompleted" if current == "Succeeded" else "PodFailed"
    serving = [c for c in pod.initial if c.sidecar] + list(pod.main)
    unready = [c.name for c in serving if not c.ready]
    if unready or not pod.initialized:
        return False, f"ContainersNotReady: containers with unready status: [{' '.join(unready)}]"
    return True, ""


def _ready(containers: tuple[bool, str], manifest: Object, old: dict[str, Object]) -> tuple[bool, str]:
    gates = [gate["conditionType"] for gate in manifest.get("spec", {}).get("readinessGates") or []]
    shut = [gate for gate in gates if old.get(gate, {}).get("status") != "True"]
    if containers[0] and shut:
        return False, f"ReadinessGatesNotReady: the status of pod readiness gates {shut} is not True"
    return containers


def _condition(kind: str, value: bool, why: str, old: Object, now: str) -> Object:
    reason, _, message = why.partition(": ")
    text = str(value)
    since = old.get("lastTransitionTime") if old.get("status") == text else None
    # A strategic merge keeps what is not named: null removes the reason of the condition's former state.
    return {
        "type": kind,
        "status": text,
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": since or now,
    }

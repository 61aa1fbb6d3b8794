"""A pod's status from the state of its containers. Pure."""

from __future__ import annotations

from typing import Any

from eldr_kube.agent.container import Container

Object = dict[str, Any]


def is_sidecar(spec: Object) -> bool:
    """Tell whether an init container is a native sidecar."""
    return spec.get("restartPolicy") == "Always"


def phase(initial: list[Container], main: list[Container], *, initialized: bool) -> str:
    """Return a pod's phase.

    Parameters
    ----------
    initial, main : list of Container
    initialized : bool
        Whether the main containers were started.
    """
    if not initialized:
        failed = [c for c in initial if c.policy == "Never" and c.exit_code not in {None, 0}]
        return "Failed" if failed else "Pending"
    codes = [c.exit_code for c in main]
    over = [
        c.policy == "Never" or (c.policy == "OnFailure" and code == 0)
        for c, code in zip(main, codes, strict=True)
    ]
    if all(done and code is not None for done, code in zip(over, codes, strict=True)):
        return "Failed" if any(codes) else "Succeeded"
    return "Running"


def container_status(container: Container, *, init: bool) -> Object:
    """Return one entry of ``containerStatuses``."""
    done = init and not is_sidecar(container.spec) and container.exit_code == 0
    return {
        "name": container.name,
        "image": container.spec["image"],
        "imageID": container.spec["image"],
        "ready": container.ready or done,
        "started": container.started,
        "restartCount": container.restarts,
        "state": container.state,
        "lastState": container.last_state,
    }


def pod_status(
    initial: list[Container],
    main: list[Container],
    *,
    initialized: bool,
    address: str,
    begun: str,
    now: str,
    old: Object,
) -> Object:
    """Return a pod's status; transition times move only when a condition changes.

    Parameters
    ----------
    initial, main : list of Container
    initialized : bool
    address : str
    begun, now : str
        Timestamps of the pod's start and of this moment.
    old : dict
        The status reported last.
    """
    serving = [*main, *(c for c in initial if is_sidecar(c.spec))]
    ready = initialized and all(c.ready for c in serving)
    truth = {"PodScheduled": True, "Initialized": initialized, "ContainersReady": ready, "Ready": ready}
    before = {item["type"]: item for item in old.get("conditions", [])}
    conditions = []
    for kind, value in truth.items():
        text = str(value)
        same = before.get(kind, {}).get("status") == text
        conditions.append(
            {
                "type": kind,
                "status": text,
                "lastTransitionTime": before[kind]["lastTransitionTime"] if same else now,
            }
        )
    return {
        "phase": phase(initial, main, initialized=initialized),
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": begun,
        "conditions": conditions,
        "initContainerStatuses": [container_status(c, init=True) for c in initial],
        "containerStatuses": [container_status(c, init=False) for c in main],
    }

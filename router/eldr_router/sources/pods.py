"""Pods as Kubernetes describes them: which are engines that take requests, which are other routers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eldr.contract import (
    CONTAINER_ENGINE,
    CONTAINER_ROUTER,
    LABEL_ROLE,
    LABEL_ROUTER,
    LABEL_STATEFULSET_INDEX,
    PORT_ADMIN,
    PORT_ENGINE,
    ROLE_DECODE,
    ROLE_PREFILL,
)
from eldr_router.state.registry import EndpointSpec

Pod = Mapping[str, Any]


def engines(pods: Iterable[Pod]) -> list[EndpointSpec]:
    """Return the engines that take requests: own container ready, pod not terminating; by name."""
    found = [spec for pod in pods if (spec := _engine(pod)) is not None]
    return sorted(found, key=lambda spec: (spec.slot, spec.name))


def _engine(pod: Pod) -> EndpointSpec | None:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    role = labels.get(LABEL_ROLE)
    address = (pod.get("status") or {}).get("podIP")
    if role not in (ROLE_PREFILL, ROLE_DECODE) or not address or metadata.get("deletionTimestamp"):
        return None
    if not _container(pod, CONTAINER_ENGINE).get("ready"):
        return None
    index = labels.get(LABEL_STATEFULSET_INDEX, "")
    slot = int(index) if role == ROLE_DECODE and index.isdigit() else -1
    return EndpointSpec(role, metadata["name"], address, PORT_ENGINE, slot)


def peers(pods: Iterable[Pod], own_address: str) -> list[tuple[str, int]]:
    """Return the admin addresses of the other routers; terminating ones still have requests in flight."""
    found = []
    for pod in pods:
        address = (pod.get("status") or {}).get("podIP")
        labels = pod["metadata"].get("labels") or {}
        running = "running" in (_container(pod, CONTAINER_ROUTER).get("state") or {})
        if labels.get(LABEL_ROUTER) == "true" and running and address and address != own_address:
            found.append((address, PORT_ADMIN))
    return found


def _container(pod: Pod, name: str) -> Mapping[str, Any]:
    status = pod.get("status") or {}
    # native sidecars are init containers
    for entry in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        if entry.get("name") == name:
            return entry  # type: ignore[no-any-return]
    return {}

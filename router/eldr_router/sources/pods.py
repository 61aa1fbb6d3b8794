"""Pods: which are engines, and which are other routers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from eldr.admin_tls import is_secure
from eldr.contract import (
    CONTAINER_ENGINE,
    ENDED_PHASES,
    LABEL_KV,
    LABEL_ROLE,
    LABEL_ROUTER,
    LABEL_STATEFULSET_INDEX,
    PORT_ADMIN,
    PORT_ENGINE,
    ROLE_DECODE,
    ROLE_PREFILL,
)
from eldr_router.engines.spec import EndpointSpec

Pod = Mapping[str, Any]


def engines(pods: Iterable[Pod]) -> list[EndpointSpec]:
    """Return ready engines whose pods are not terminating, by name."""
    specs = [spec for pod in pods if (spec := _engine(pod)) is not None]
    return sorted(specs, key=lambda spec: (spec.slot, spec.name))


def _engine(pod: Pod) -> EndpointSpec | None:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    role = labels.get(LABEL_ROLE)
    address = (pod.get("status") or {}).get("podIP")
    if role not in (ROLE_PREFILL, ROLE_DECODE) or not address or metadata.get("deletionTimestamp"):
        return None
    # Kubernetes may fail a whole pod, as on a lost node, and leave its containers marked ready
    if _has_ended(pod) or not _container(pod, CONTAINER_ENGINE).get("ready"):
        return None
    index = labels.get(LABEL_STATEFULSET_INDEX, "")
    slot = int(index) if role == ROLE_DECODE and index.isdigit() else -1
    return EndpointSpec(role, metadata["name"], address, PORT_ENGINE, slot, labels.get(LABEL_KV, ""))


def peers(pods: Iterable[Pod], own_address: str) -> list[tuple[str, int]]:
    """Return the other routers' admin addresses.

    A router that terminates still has requests in flight.
    """
    return [(address, PORT_ADMIN) for address, _ in _routers(pods) if address != own_address]


def secure(pods: Iterable[Pod], name: str) -> dict[tuple[str, int], str]:
    """Return the admin addresses with TLS, and the certificates' name."""
    return {(address, PORT_ADMIN): name for address, pod in _routers(pods) if is_secure(pod)}


def _routers(pods: Iterable[Pod]) -> Iterator[tuple[str, Pod]]:
    for pod in pods:
        status = pod.get("status") or {}
        is_router = (pod["metadata"].get("labels") or {}).get(LABEL_ROUTER) == "true"
        if is_router and status.get("podIP") and not _has_ended(pod):
            yield status["podIP"], pod


def _has_ended(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED_PHASES


def _container(pod: Pod, name: str) -> Mapping[str, Any]:
    status = pod.get("status") or {}
    # native sidecars are init containers
    for entry in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        if entry.get("name") == name:
            return entry  # type: ignore[no-any-return]
    return {}

"""Registers nodes that offer AMD GPUs and keeps their leases fresh."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from typing import Any

import httpx

from eldr_kube.agent.api import Api, ApiError
from eldr_kube.agent.clock import precise_timestamp, timestamp
from eldr_kube.agent.resources import CAPACITY
from eldr_kube.agent.status import HOST_ADDRESS
from eldr_kube.servers import KUBERNETES

Object = dict[str, Any]
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_log = logging.getLogger(__name__)


def node_labels(name: str) -> dict[str, str]:
    """Return a node's labels: what the kubelet and AMD's node labeller set."""
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
        "amd.com/gpu.device-id": "74a1",
        "amd.com/gpu.family": "AI",
        "amd.com/gpu.vram": "192G",
    }


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def node_status(name: str, port: int, note: str) -> Object:
    """Return the status of a Ready node; ``note`` goes into its condition."""
    now = timestamp()
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [_condition(kind, "False", "AgentHasNoPressure", "", now) for kind in pressures]
    conditions.append(_condition("Ready", "True", "AgentReady", note, now))
    info = {
        "architecture": _architecture(),
        "operatingSystem": "linux",
        "kernelVersion": os.uname().release,
        "osImage": "this machine",
        "containerRuntimeVersion": "eldr-agent://1",
        "kubeletVersion": KUBERNETES,
    }
    unknown = ("bootID", "kubeProxyVersion", "machineID", "systemUUID")
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "addresses": [
            {"type": "InternalIP", "address": HOST_ADDRESS},
            {"type": "Hostname", "address": name},
        ],
        "conditions": conditions,
        "nodeInfo": dict.fromkeys(unknown, "") | info,
    }


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Object:
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


async def register(api: Api, name: str, port: int, note: str) -> None:
    """Create a node, or take over one that an earlier agent left, and report it Ready."""
    metadata = {"name": name, "labels": node_labels(name)}
    try:
        await api.call("POST", "/api/v1/nodes", {"metadata": metadata})
    except ApiError as error:
        if error.status != 409:
            raise
        await api.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": metadata})
    await api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": node_status(name, port, note)})


async def heartbeat(api: Api, name: str) -> None:
    """Renew a node's lease for ever."""
    while True:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": precise_timestamp(),
        }
        try:
            await _renew(api, name, spec)
        except (ApiError, httpx.HTTPError) as error:
            _log.warning("lease of %s: %s", name, error or type(error).__name__)
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def _renew(api: Api, name: str, spec: Object) -> None:
    try:
        await api.call("PATCH", f"{_LEASES}/{name}", {"spec": spec})
    except ApiError as error:
        if error.status != 404:
            raise
        await api.call("POST", _LEASES, {"metadata": {"name": name}, "spec": spec})

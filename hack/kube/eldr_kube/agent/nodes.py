"""Registers nodes that offer AMD GPUs and keeps their leases fresh."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from typing import Any

from eldr_kube.agent.api import Api, ApiError

Object = dict[str, Any]
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
GPUS = 8
LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
    "amd.com/gpu.device-id": "74a1",
    "amd.com/gpu.family": "AI",
    "amd.com/gpu.vram": "192G",
}


def timestamp() -> str:
    """Return the current time as the API writes it."""
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_status(name: str, port: int, note: str) -> Object:
    """Return the status of a Ready node; ``note`` goes into its condition."""
    capacity = {
        "cpu": "64",
        "memory": "512Gi",
        "ephemeral-storage": "500Gi",
        "pods": "250",
        "amd.com/gpu": str(GPUS),
    }
    info = (
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
    )
    ready = {"type": "Ready", "status": "True", "reason": "AgentReady", "message": note}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
        "conditions": [{**ready, "lastHeartbeatTime": timestamp(), "lastTransitionTime": timestamp()}],
        "nodeInfo": dict.fromkeys(
            (*info, "machineID", "operatingSystem", "osImage", "systemUUID"), "eldr-agent"
        )
        | {"kernelVersion": os.uname().release, "kubeletVersion": "v1.36.4"},
    }


async def register(api: Api, name: str, port: int, note: str) -> None:
    """Create a node, or take over one that an earlier agent left, and report it Ready."""
    labels = {**LABELS, "kubernetes.io/hostname": name}
    try:
        await api.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    except ApiError as error:
        if error.status != 409:
            raise
    await api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": node_status(name, port, note)})


async def heartbeat(api: Api, name: str) -> None:
    """Renew a node's lease for ever."""
    base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS}
    while True:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            await api.call("PATCH", f"{base}/{name}", {"spec": {**spec, "renewTime": now}})
        except ApiError as error:
            if error.status == 404:
                await api.call("POST", base, {"metadata": {"name": name}, "spec": {**spec, "renewTime": now}})
        except OSError:
            pass
        await asyncio.sleep(HEARTBEAT_SECONDS)

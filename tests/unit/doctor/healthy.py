"""Facts of a deployment with which all is well; tests break one thing of it."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from eldr import contract
from eldr.doctor.facts import Answer, Facts
from eldr.doctor.templates import templates

NOW = datetime(2026, 11, 22, 7, 10, tzinfo=UTC)
LEASE = {"spec": {"holderIdentity": "eldr-system/eldr-operator", "renewTime": "2026-11-22T07:09:57.000000Z"}}
SERVICE = {"spec": {"selector": {contract.LABEL_ROUTER: "true"}}}


def deployment(**spec: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"uri": "org/model"},
        "engine": {"type": "vLLM"},
        "prefill": {"replicas": 1, "gpus": 1},
        "decode": {"replicas": 2, "gpus": 1},
        "accelerator": {"resourceName": "amd.com/gpu"},
        "router": {"placement": "Sidecar"},
    }
    for key, value in spec.items():
        base[key] = {**base.get(key, {}), **value}
    conditions = [
        {"type": kind, "status": "True", "reason": "AllReady", "message": "fine"}
        for kind in ("Ready", "Available", "PrefillReady", "DecodeReady", "RouterReady", "ConfigValid")
    ]
    status = {
        "observedGeneration": 1,
        "conditions": conditions,
        "prefill": {"ready": 1, "desired": 1},
        "decode": {"ready": 2, "desired": 2},
    }
    return {
        "metadata": {"name": "x", "namespace": "team", "generation": 1},
        "spec": base,
        "status": status,
    }


def pod(role: str = "decode", number: int = 0) -> dict[str, Any]:
    labels = {contract.LABEL_DEPLOYMENT: "x", contract.LABEL_ROLE: role}
    if role == "prefill":
        labels[contract.LABEL_ROUTER] = "true"
    state = {"name": "engine", "image": "registry.test/vllm:1", "ready": True, "restartCount": 0}
    return {
        "metadata": {"name": f"x-{role}-{number}", "labels": labels},
        "spec": {"containers": [{"name": "engine"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [state | {"state": {"running": {}}}],
        },
    }


def node(name: str = "n", **allocatable: str) -> dict[str, Any]:
    found = {"cpu": "64", "memory": "512Gi", "amd.com/gpu": "8"} | allocatable
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"allocatable": found}}


def facts(spec: dict[str, Any] | None = None, **changes: Any) -> Facts:
    found = deployment(**(spec or {}))
    given: dict[str, Any] = {
        "deployment": found,
        "templates": templates(found, ()),
        "pods": (pod("prefill"), pod(), pod(number=1)),
        "nodes": (node(),),
        "lease": LEASE,
        "service": SERVICE,
        "routers": (Answer("x-prefill-0", 200, "{}"),),
    }
    return Facts(**deepcopy(given | changes))

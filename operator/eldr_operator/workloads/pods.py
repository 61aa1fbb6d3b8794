"""What the pods of all roles share: security, identity, probes, environment. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator.models import EldrDeployment, RoleSpec
from eldr_operator.workloads.podpatch import patched

Object = dict[str, Any]

USER = 65532

POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
UNPRIVILEGED: Object = CONTAINER_SECURITY | {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
}
"""For our own containers, whatever their pod allows the engine."""
OWN_REQUESTS: Object = {"requests": {"cpu": "100m", "memory": "256Mi"}}
"""Of our own containers where a resource names none: quotas on requests refuse pods without."""
TMP_MOUNT: Object = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - inside the container, an emptyDir
TMP_VOLUME: Object = {"name": "tmp", "emptyDir": {}}

_IDENTITY: list[Object] = [
    {"name": contract.ENV_POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": contract.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    {"name": contract.ENV_POD_NAMESPACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """What one kind of engine contributes to a pod.

    Parameters
    ----------
    volumes, init_containers : tuple of dict
    """

    container: Object
    security: Object
    volumes: tuple[Object, ...]
    init_containers: tuple[Object, ...] = ()


def template(labels: dict[str, str], spec: Object, patch: Object) -> Object:
    """Return a pod template with ``podTemplate`` merged in.

    A patch may add labels, but never those that Services, routers and selectors go by.
    """
    made = patched({"metadata": {"labels": labels}, "spec": spec}, patch)
    patched_labels = made["metadata"].get("labels") or {}
    added = {key: value for key, value in patched_labels.items() if not key.startswith(f"{contract.GROUP}/")}
    made["metadata"]["labels"] = added | labels
    return made


def engine_container(
    cr: EldrDeployment, spec: RoleSpec, *, image: str, command: list[str], args: list[str], env: list[Object]
) -> Object:
    """Return what the engine containers of all kinds share; users' variables win by name."""
    accelerators = {cr.spec.accelerator.resource_name: str(spec.gpus)} if spec.gpus else {}
    return {
        "name": contract.CONTAINER_ENGINE,
        "image": image,
        "imagePullPolicy": cr.spec.engine.image_pull_policy,
        "command": command,
        "args": args,
        "env": environment(env, cr.spec.engine.env, spec.env),
        "ports": [{"name": "engine", "containerPort": contract.PORT_ENGINE, "protocol": "TCP"}],
        "resources": resources(spec.resources, accelerators),
    }


def environment(*lists: Iterable[Object]) -> list[Object]:
    """Return the pod's identity and the given variables; the later definition of a name wins, in the earlier place."""
    merged: dict[str, Object] = {}
    for variables in (_IDENTITY, *lists):
        for variable in variables:
            merged[variable["name"]] = variable
    return list(merged.values())


def admin_token(deployment: str) -> Object:
    """Return the variable that holds the bearer token of the admin ports."""
    reference = {"name": contract.admin_secret_name(deployment), "key": contract.SECRET_TOKEN_KEY}
    return {"name": contract.ENV_ADMIN_TOKEN, "valueFrom": {"secretKeyRef": reference}}


def probe(
    path: str, port: int, *, period: int, failures: int, timeout: int = 2, scheme: str = "HTTP"
) -> Object:
    """Return a probe by HTTP, or by HTTPS, which checks no certificate."""
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def resources(spec: Object, extended: dict[str, str] | None = None) -> Object:
    """Return requests and limits, with extended resources in both, as Kubernetes demands."""
    if not extended:
        return {key: dict(value) for key, value in spec.items()}
    return {key: {**spec.get(key, {}), **extended} for key in ("requests", "limits")}

"""Prefill Deployment and decode StatefulSet. Pure."""

from __future__ import annotations

from typing import Any

from eldr import contract
from eldr_operator.desired import _meta, pods, router
from eldr_operator.desired.podpatch import patched
from eldr_operator.models import EldrDeployment, RoleSpec

Object = dict[str, Any]


def prefill(cr: EldrDeployment, image: str) -> Object:
    """Return the Deployment of prefill engines, with a router in each pod for placement Sidecar."""
    head = _meta.manifest(
        "apps/v1", "Deployment", cr, _meta.child_name(cr, contract.ROLE_PREFILL), contract.ROLE_PREFILL
    )
    spec = _pod_spec(cr, contract.ROLE_PREFILL, cr.spec.prefill, image)
    extra: dict[str, str] = {}
    if cr.spec.router.placement == "Sidecar":
        extra[contract.LABEL_ROUTER] = "true"
        sidecar = router.container(cr, image) | {"restartPolicy": "Always"}
        # The kubelet stops a native sidecar after the engine: its streams get their time on top of the engine's.
        grace = cr.spec.router.drain_seconds + spec["terminationGracePeriodSeconds"]
        spec |= {
            "serviceAccountName": _meta.child_name(cr, _meta.ROUTER),
            "terminationGracePeriodSeconds": grace,
            "initContainers": [sidecar],
            "volumes": [*spec["volumes"], *router.volumes()],
        }
    selector = _meta.role_selector(cr, contract.ROLE_PREFILL)
    return head | {
        "spec": {
            "replicas": cr.spec.prefill.replicas,
            "selector": {"matchLabels": selector},
            "template": _template(head, selector | extra, spec, cr.spec.prefill.pod_template),
        }
    }


def decode(cr: EldrDeployment, image: str) -> Object:
    """Return the StatefulSet of decode engines, whose ordinals are the slots of centroids."""
    name = _meta.child_name(cr, contract.ROLE_DECODE)
    head = _meta.manifest("apps/v1", "StatefulSet", cr, name, contract.ROLE_DECODE)
    spec = _pod_spec(cr, contract.ROLE_DECODE, cr.spec.decode, image)
    selector = _meta.role_selector(cr, contract.ROLE_DECODE)
    return head | {
        "spec": {
            "replicas": cr.spec.decode.replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector},
            "template": _template(head, selector, spec, cr.spec.decode.pod_template),
        }
    }


def _template(head: Object, identity: dict[str, str], spec: Object, patch: Object) -> Object:
    pod_labels = head["metadata"]["labels"] | identity
    template = patched({"metadata": {"labels": pod_labels}, "spec": spec}, patch)
    # A patch may add labels, but never those that Services, routers and selectors go by.
    labels = template["metadata"].get("labels") or {}
    added = {key: value for key, value in labels.items() if not key.startswith(f"{contract.GROUP}/")}
    template["metadata"]["labels"] = added | pod_labels
    return template


def _pod_spec(cr: EldrDeployment, role: str, spec: RoleSpec, image: str) -> Object:
    return {
        "serviceAccountName": _meta.child_name(cr, _meta.ENGINE),
        "automountServiceAccountToken": False,
        "securityContext": pods.POD_SECURITY,
        "terminationGracePeriodSeconds": spec.drain_seconds + router.MARGIN_SECONDS,
        "containers": [_engine(cr, role, spec, image)],
        "volumes": [pods.TMP_VOLUME],
    }


def _engine(cr: EldrDeployment, role: str, spec: RoleSpec, image: str) -> Object:
    engine = cr.spec.engine
    accelerators = {cr.spec.accelerator.resource_name: str(spec.gpus)} if spec.gpus else {}
    return {
        "name": contract.CONTAINER_ENGINE,
        "image": engine.image or image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": ["eldr"],
        "args": [
            "engine-sim",
            f"--role={role}",
            f"--host=$({contract.ENV_POD_IP})",
            f"--port={contract.PORT_ENGINE}",
            f"--model={cr.served_model}",
            f"--lease-seconds={engine.lease_seconds}",
            f"--shutdown-timeout={spec.drain_seconds}",
            *engine.args,
            *spec.args,
        ],
        "env": pods.environment(engine.env, spec.env),
        "ports": [{"name": "engine", "containerPort": contract.PORT_ENGINE, "protocol": "TCP"}],
        "resources": pods.resources(spec.resources, accelerators),
        "startupProbe": pods.probe(contract.PATH_HEALTH, contract.PORT_ENGINE, period=1, failures=120),
        "livenessProbe": pods.probe(
            contract.PATH_HEALTH, contract.PORT_ENGINE, period=10, failures=6, timeout=5
        ),
        "readinessProbe": pods.probe(contract.PATH_HEALTH, contract.PORT_ENGINE, period=2, failures=2),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": [pods.TMP_MOUNT],
    }

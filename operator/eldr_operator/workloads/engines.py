"""Prefill Deployment and decode StatefulSet, whatever the engine. Pure."""

from __future__ import annotations

from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.models import DecodeSpec, EldrDeployment, PrefillSpec, RoleSpec
from eldr_operator.workloads import kv, pods, rollout, router, simulator, vllm
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.pods import EnginePod

Object = dict[str, Any]

_MAKERS = {"Simulator": simulator.engine_pod, "vLLM": vllm.engine_pod}


def prefill(cr: EldrDeployment, images: Images) -> Object:
    """Return the Deployment of prefill engines, with a router in each pod for placement Sidecar."""
    head = meta.manifest(
        "apps/v1", "Deployment", cr, meta.child_name(cr, contract.ROLE_PREFILL), contract.ROLE_PREFILL
    )
    engine = _engine(cr, contract.ROLE_PREFILL, cr.spec.prefill, images)
    spec = _pod_spec(cr, cr.spec.prefill, engine)
    extra: dict[str, str] = {}
    if cr.spec.router.placement == "Sidecar":
        extra[contract.LABEL_ROUTER] = "true"
        sidecar = router.container(cr, images.own) | {"restartPolicy": "Always"}
        # The kubelet stops a native sidecar after the engine: its streams get their time on top of the engine's.
        grace = cr.spec.router.drain_seconds + spec["terminationGracePeriodSeconds"]
        spec |= {
            "serviceAccountName": meta.child_name(cr, meta.ROUTER),
            "terminationGracePeriodSeconds": grace,
            "initContainers": [*engine.init_containers, sidecar],
            "volumes": [*spec["volumes"], *router.volumes(cr)],
        }
    selector = meta.role_selector(cr, contract.ROLE_PREFILL)
    deployment: Object = {
        "replicas": cr.spec.prefill.replicas,
        "selector": {"matchLabels": selector},
        "template": _template(cr, cr.spec.prefill, head["metadata"]["labels"] | selector | extra, spec),
    }
    deployment |= rollout.paced(_min_ready_seconds(cr, cr.spec.prefill))
    # Kubernetes wants a deadline beyond the time for which a pod must be ready
    deployment["progressDeadlineSeconds"] = rollout.deadline_seconds(
        cr.spec.prefill.rollout, deployment["template"], beside=deployment.get("minReadySeconds", 0)
    )
    return head | {"spec": deployment}


def decode(cr: EldrDeployment, images: Images) -> Object:
    """Return the StatefulSet of decode engines, whose ordinals are the slots of centroids."""
    name = meta.child_name(cr, contract.ROLE_DECODE)
    head = meta.manifest("apps/v1", "StatefulSet", cr, name, contract.ROLE_DECODE)
    spec = _pod_spec(cr, cr.spec.decode, _engine(cr, contract.ROLE_DECODE, cr.spec.decode, images))
    selector = meta.role_selector(cr, contract.ROLE_DECODE)
    return head | {
        "spec": {
            "replicas": cr.spec.decode.replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            **rollout.of_stateful_set(cr.spec.decode.rollout, cr.spec.decode.replicas),
            **rollout.paced(_min_ready_seconds(cr, cr.spec.decode)),
            "selector": {"matchLabels": selector},
            "template": _template(cr, cr.spec.decode, head["metadata"]["labels"] | selector, spec),
        }
    }


def _min_ready_seconds(cr: EldrDeployment, spec: PrefillSpec | DecodeSpec) -> int:
    if spec.rollout.min_ready_seconds is not None:
        return spec.rollout.min_ready_seconds
    return rollout.MIN_READY_SECONDS if spec.gpus and cr.spec.engine.type != "Simulator" else 0


def _template(cr: EldrDeployment, spec: RoleSpec, labels: dict[str, str], pod: Object) -> Object:
    return kv.labelled(cr, spec, pods.template(labels, pod, spec.pod_template))


def _engine(cr: EldrDeployment, role: str, spec: RoleSpec, images: Images) -> EnginePod:
    return _MAKERS[cr.spec.engine.type](cr, role, spec, images)


def _pod_spec(cr: EldrDeployment, spec: RoleSpec, engine: EnginePod) -> Object:
    made: Object = {
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT, on which vLLM ends
        "serviceAccountName": meta.child_name(cr, meta.ENGINE),
        "automountServiceAccountToken": False,
        "securityContext": engine.security,
        "terminationGracePeriodSeconds": spec.drain_seconds + router.MARGIN_SECONDS,
        "containers": [engine.container],
        "volumes": [*engine.volumes],
    }
    if engine.init_containers:
        made["initContainers"] = [*engine.init_containers]
    return made

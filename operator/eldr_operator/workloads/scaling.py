"""How many pods a role has: what an autoscaler or a person set on its EldrScaler, or else what the EldrDeployment says. Pure.

An EldrScaler carries ``/scale``. Its replicas are the operator's until somebody else sets them: ``metadata.managedFields`` says whose
they are. A backup that is restored has other managers, so what the operator has set stands in an annotation as well.

References
----------
.. [1] Kubernetes documentation, Custom Resources, "Scale subresource", and Server-Side Apply, "Transferring ownership".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.conditions import is_observed
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

ANNOTATION_REPLICAS = f"{contract.GROUP}/replicas"
AUTOSCALER = "kube-controller-manager"
"""As whom a HorizontalPodAutoscaler sets replicas, that of KEDA included."""
_WORKLOADS = {contract.ROLE_PREFILL: "Deployment", contract.ROLE_DECODE: "StatefulSet"}


def set_by(cr: EldrDeployment, live: Snapshot) -> dict[str, str]:
    """Return the roles whose replicas are not the operator's, and who set them, for example ``kube-controller-manager``."""
    return {role: _manager(scaler) for role, scaler in _theirs(cr, live).items()}


def spec_replicas(cr: EldrDeployment, live: Snapshot) -> dict[str, int]:
    """Return the replicas of the spec that have no effect, by role, because somebody else has set them."""
    return {role: getattr(cr.spec, role).replicas for role in _theirs(cr, live)}


def scaled(cr: EldrDeployment, live: Snapshot) -> EldrDeployment:
    """Return a deployment with the replicas that it is to have now."""
    roles = {
        role: getattr(cr.spec, role).model_copy(update={"replicas": scaler["spec"]["replicas"]})
        for role, scaler in _theirs(cr, live).items()
    }
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=roles)})


def manifests(cr: EldrDeployment, live: Snapshot) -> list[Object]:
    """Return the EldrScalers; replicas that others have set are left out, and so stay theirs."""
    theirs = _theirs(cr, live)
    made = []
    for role in _WORKLOADS:
        head = meta.manifest(contract.API_VERSION, contract.KIND_SCALER, cr, meta.child_name(cr, role), role)
        replicas = None if role in theirs else getattr(cr.spec, role).replicas
        # emptied, not left out: what others set later may be what was written here
        head["metadata"]["annotations"] = {ANNOTATION_REPLICAS: str(replicas or "")}
        made.append(head if replicas is None else head | {"spec": {"replicas": replicas}})
    return made


def statuses(cr: EldrDeployment, live: Snapshot) -> list[tuple[Object, Object]]:
    """Return the EldrScalers whose status is not what autoscalers are to read, and what it should be."""
    found = []
    for role, kind in _WORKLOADS.items():
        workload = live.owned(kind, meta.child_name(cr, role), cr.metadata.uid) or {}
        if workload and not is_observed(workload):
            continue  # told once, when its controller has counted the pods
        selector = ",".join(f"{key}={value}" for key, value in meta.role_selector(cr, role).items())
        wanted = {"replicas": (workload.get("status") or {}).get("replicas", 0), "selector": selector}
        scaler = _scaler(cr, role, live)
        if scaler is not None and scaler.get("status") != wanted:
            found.append((scaler, wanted))
    return found


def _scaler(cr: EldrDeployment, role: str, live: Snapshot) -> Object | None:
    return live.ours(contract.KIND_SCALER, meta.child_name(cr, role), cr.name, cr.metadata.uid)


def _theirs(cr: EldrDeployment, live: Snapshot) -> dict[str, Object]:
    """Return the EldrScalers whose replicas are not the operator's, by role."""
    found = {role: _scaler(cr, role, live) for role in _WORKLOADS}
    return {role: scaler for role, scaler in found.items() if scaler is not None and _manager(scaler)}


def _manager(scaler: Mapping[str, Any]) -> str:
    """Return who set the replicas last; empty if that is the operator, or nobody."""
    metadata = scaler["metadata"]
    managed = [
        (entry["manager"], entry.get("fieldsV1") or {}) for entry in metadata.get("managedFields") or ()
    ]
    owners = {manager for manager, fields in managed if "f:replicas" in (fields.get("f:spec") or {})}
    if contract.FIELD_MANAGER in owners:
        return ""
    written = (metadata.get("annotations") or {}).get(ANNOTATION_REPLICAS)
    if written == str((scaler.get("spec") or {}).get("replicas")):
        # a restored object has one manager for both; an autoscaler may have come back to what the operator had set
        owners -= {
            manager for manager, fields in managed if f"f:{ANNOTATION_REPLICAS}" in _annotations(fields)
        }
    return min(owners, default="")


def _annotations(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return (fields.get("f:metadata") or {}).get("f:annotations") or {}

"""How many pods a role has: what an autoscaler or a person set on its EldrScaler, or else what the EldrDeployment says. Pure.

An EldrScaler carries ``/scale``. Its replicas are the operator's until somebody else sets them: ``metadata.managedFields`` says whose
they are. A backup that is restored has other managers, so what the operator has set stands in an annotation as well. One that is deleted
is made again with the replicas that run, in the name of whoever had set them: only the annotation hands them back.

References
----------
.. [1] Kubernetes documentation, Custom Resources, "Scale subresource", and Server-Side Apply, "Transferring ownership".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import meta
from eldr_operator.conditions import is_observed
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_WORKLOADS = {contract.ROLE_PREFILL: "Deployment", contract.ROLE_DECODE: "StatefulSet"}


class _Scale(NamedTuple):
    replicas: int
    by: str


def set_by(cr: EldrDeployment, live: Snapshot) -> dict[str, str]:
    """Return the roles whose replicas are not the operator's, and who set them, for example ``kube-controller-manager``."""
    return {role: scale.by for role, scale in _theirs(cr, live).items()}


def deleted(cr: EldrDeployment, live: Snapshot) -> dict[str, str]:
    """Return the names of EldrScalers that are gone though others had set their replicas, and who."""
    theirs = _theirs(cr, live)
    return {
        meta.child_name(cr, role): scale.by
        for role, scale in theirs.items()
        if _scaler(cr, role, live) is None
    }


def spec_replicas(cr: EldrDeployment, live: Snapshot) -> dict[str, int]:
    """Return the replicas of the spec that have no effect, by role, because another writer has set them."""
    return {role: getattr(cr.spec, role).replicas for role in _theirs(cr, live)}


def scaled(cr: EldrDeployment, live: Snapshot) -> EldrDeployment:
    """Return a deployment with the replicas that it is to have now."""
    roles = {
        role: getattr(cr.spec, role).model_copy(update={"replicas": scale.replicas})
        for role, scale in _theirs(cr, live).items()
    }
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=roles)})


def manifests(cr: EldrDeployment, live: Snapshot) -> list[Object]:
    """Return the EldrScalers of a deployment that is :func:`scaled`; replicas that others have set are left out, and so stay theirs."""
    theirs = _theirs(cr, live)
    made = []
    for role in _WORKLOADS:
        head = meta.manifest(contract.API_VERSION, contract.KIND_SCALER, cr, meta.child_name(cr, role), role)
        replicas = getattr(cr.spec, role).replicas
        is_left = role in theirs and _scaler(cr, role, live) is not None
        # emptied, not left out: what others set later may be what was written here
        head["metadata"]["annotations"] = {
            contract.ANNOTATION_REPLICAS: "" if role in theirs else str(replicas)
        }
        made.append(head if is_left else head | {"spec": {"replicas": replicas}})
    return made


def statuses(cr: EldrDeployment, live: Snapshot) -> list[tuple[Object, Object]]:
    """Return the EldrScalers whose status is not what autoscalers are to read, and what it should be."""
    stale = []
    for role, kind in _WORKLOADS.items():
        workload = live.owned(kind, meta.child_name(cr, role), cr.metadata.uid) or {}
        if workload and not is_observed(workload):
            continue  # told once, when its controller has counted the pods
        selector = ",".join(f"{key}={value}" for key, value in meta.role_selector(cr, role).items())
        wanted = {"replicas": (workload.get("status") or {}).get("replicas", 0), "selector": selector}
        scaler = _scaler(cr, role, live)
        if scaler is not None and scaler.get("status") != wanted:
            stale.append((scaler, wanted))
    return stale


def _scaler(cr: EldrDeployment, role: str, live: Snapshot) -> Object | None:
    return live.ours(contract.KIND_SCALER, meta.child_name(cr, role), cr.name, cr.metadata.uid)


def _theirs(cr: EldrDeployment, live: Snapshot) -> dict[str, _Scale]:
    """Return the replicas that are not the operator's, and who has set them, by role."""
    scales = {}
    for role, kind in _WORKLOADS.items():
        scaler = _scaler(cr, role, live)
        by = _manager(scaler) if scaler else (cr.status.get(role) or {}).get("scaledBy", "")
        source = scaler or live.owned(kind, meta.child_name(cr, role), cr.metadata.uid)
        if source and by:
            scales[role] = _Scale(source["spec"]["replicas"], by)
    return scales


def _manager(scaler: Mapping[str, Any]) -> str:
    """Return who set the replicas last; empty if that is the operator, if no writer has, or if they were handed back."""
    metadata = scaler["metadata"]
    managed = [
        (entry["manager"], entry.get("fieldsV1") or {}) for entry in metadata.get("managedFields") or ()
    ]
    owners = {manager for manager, fields in managed if "f:replicas" in (fields.get("f:spec") or {})}
    written = (metadata.get("annotations") or {}).get(contract.ANNOTATION_REPLICAS)
    if contract.FIELD_MANAGER in owners or written == contract.HANDED_BACK:
        return ""
    if written == str((scaler.get("spec") or {}).get("replicas")):
        # a restored object has one manager for both; an autoscaler may have come back to what the operator had set
        owners -= {
            manager
            for manager, fields in managed
            if f"f:{contract.ANNOTATION_REPLICAS}" in _annotations(fields)
        }
    return min(owners, default="")


def _annotations(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return (fields.get("f:metadata") or {}).get("f:annotations") or {}

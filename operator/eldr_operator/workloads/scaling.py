"""How many pods a role has: what an autoscaler or a person set on its EldrScaler, or else what the EldrDeployment says. Pure.

An EldrScaler carries ``/scale``. Its replicas are the operator's until somebody else sets them; ``metadata.managedFields`` says whose
they are. Whoever deletes it gives them back.

References
----------
.. [1] Kubernetes documentation, Custom Resources, "Scale subresource", and Server-Side Apply, "Transferring ownership".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_WORKLOADS = {contract.ROLE_PREFILL: "Deployment", contract.ROLE_DECODE: "StatefulSet"}


def set_by(cr: EldrDeployment, live: Snapshot) -> dict[str, str]:
    """Return the roles whose replicas are not the operator's, and who set them, for example ``kube-controller-manager``."""
    found = {role: _scaler(cr, role, live) for role in _WORKLOADS}
    return {role: name for role, scaler in found.items() if scaler and (name := _manager(scaler))}


def scaled(cr: EldrDeployment, live: Snapshot) -> EldrDeployment:
    """Return a deployment with the replicas that it is to have now."""
    replicas = {role: (_scaler(cr, role, live) or {})["spec"]["replicas"] for role in set_by(cr, live)}
    roles = {
        role: getattr(cr.spec, role).model_copy(update={"replicas": count})
        for role, count in replicas.items()
    }
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=roles)})


def manifests(cr: EldrDeployment, live: Snapshot) -> list[Object]:
    """Return the EldrScalers; replicas that others have set are left out, and so stay theirs."""
    theirs = set_by(cr, live)
    made = []
    for role in _WORKLOADS:
        head = meta.manifest(contract.API_VERSION, contract.KIND_SCALER, cr, meta.child_name(cr, role), role)
        spec = {} if role in theirs else {"spec": {"replicas": getattr(cr.spec, role).replicas}}
        made.append(head | spec)
    return made


def statuses(cr: EldrDeployment, live: Snapshot) -> list[tuple[Object, Object]]:
    """Return the EldrScalers whose status is not what autoscalers are to read, and what it should be."""
    found = []
    for role, kind in _WORKLOADS.items():
        workload = live.owned(kind, meta.child_name(cr, role), cr.metadata.uid) or {}
        selector = ",".join(f"{key}={value}" for key, value in meta.role_selector(cr, role).items())
        wanted = {"replicas": (workload.get("status") or {}).get("replicas", 0), "selector": selector}
        scaler = _scaler(cr, role, live)
        if scaler is not None and scaler.get("status") != wanted:
            found.append((scaler, wanted))
    return found


def _scaler(cr: EldrDeployment, role: str, live: Snapshot) -> Object | None:
    return live.owned(contract.KIND_SCALER, meta.child_name(cr, role), cr.metadata.uid)


def _manager(scaler: Mapping[str, Any]) -> str:
    """Return who set the replicas last; empty if that is the operator, or nobody."""
    owners = {
        entry["manager"]
        for entry in scaler["metadata"].get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    }
    return "" if contract.FIELD_MANAGER in owners else min(owners, default="")

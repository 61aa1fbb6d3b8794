"""Names, labels and owner references of children."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson

from eldr import contract
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]
ROUTER = "router"
ENGINE = "engine"
FIT = "fit"
NETWORK = "network"
MODEL = "model"


def child_name(cr: EldrDeployment, suffix: str) -> str:
    """Return the name of a child."""
    return f"{cr.name}-{suffix}"


def owner_reference(api_version: str, kind: str, name: str, uid: str, *, controller: bool = True) -> Object:
    """Return an owner reference; without blockOwnerDeletion, which needs rights on the owner's finalizers."""
    reference: Object = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    return reference | {"controller": True} if controller else reference


def owner_of(cr: EldrDeployment, *, controller: bool = True) -> Object:
    """Return the reference to an EldrDeployment."""
    return owner_reference(
        contract.API_VERSION, contract.KIND_DEPLOYMENT, cr.name, cr.metadata.uid, controller=controller
    )


def labels(deployment: str, component: str) -> dict[str, str]:
    """Return the labels of a child."""
    return {
        contract.LABEL_NAME: "eldr",
        contract.LABEL_INSTANCE: deployment,
        contract.LABEL_COMPONENT: component,
        contract.LABEL_PART_OF: "eldr",
        contract.LABEL_MANAGED_BY: contract.FIELD_MANAGER,
        contract.LABEL_DEPLOYMENT: deployment,
    }


def manifest(api_version: str, kind: str, cr: EldrDeployment, name: str, component: str) -> Object:
    """Return the head of a child's manifest."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": cr.namespace,
            "labels": labels(cr.name, component),
            "ownerReferences": [owner_of(cr)],
        },
    }


def role_selector(cr: EldrDeployment, role: str) -> dict[str, str]:
    """Return the labels that select the pods of a role."""
    return {contract.LABEL_DEPLOYMENT: cr.name, contract.LABEL_ROLE: role}


def fingerprint(value: object) -> bytes:
    """Return what differs where two JSON values do, for this process only: a tenth of the time of :func:`digest`."""
    try:
        return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).digest()
    except TypeError:  # nested too deep for it; the API server will say so
        return digest(value).encode()


def digest(value: object) -> str:
    """Return a digest of JSON; the order of keys does not matter. Names and labels rest on it: it stays as it is."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""Whose an object is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator.errors import OwnedElsewhereError


def owner_uids(live: Mapping[str, Any]) -> list[str]:
    """Return the uids of an object's owners."""
    return [owner["uid"] for owner in live["metadata"].get("ownerReferences") or ()]


def is_ours(live: Mapping[str, Any], deployment: str, uid: str) -> bool:
    """Tell whether an object belongs to the deployment of that name and uid, or did and nobody owns it any more."""
    return uid in owner_uids(live) or is_orphan(live, deployment)


def is_orphan(live: Mapping[str, Any], deployment: str) -> bool:
    """Tell whether the operator has made an object for a deployment of that name and nobody owns it any more.

    So it is after ``kubectl delete --cascade=orphan``, and in a backup that was restored.
    """
    metadata = live["metadata"]
    labels = metadata.get("labels") or {}
    managers = {entry["manager"] for entry in metadata.get("managedFields") or ()}
    ours = (labels.get(contract.LABEL_MANAGED_BY), labels.get(contract.LABEL_DEPLOYMENT))
    return (
        not owner_uids(live)
        and ours == (contract.FIELD_MANAGER, deployment)
        and contract.FIELD_MANAGER in managers
    )


def owned_elsewhere(kind: str, deployment: str, live: Mapping[str, Any]) -> OwnedElsewhereError:
    """Return the error that an object of a deployment's child belongs to something else."""
    owners = live["metadata"].get("ownerReferences") or ()
    name = live["metadata"]["name"]
    if not owners:
        return OwnedElsewhereError(kind, name, "nobody")
    shown = f"{owners[0]['kind']} {owners[0]['name']} (uid {owners[0]['uid']})"
    is_leftover = (owners[0]["kind"], owners[0]["name"]) == (contract.KIND_DEPLOYMENT, deployment)
    return OwnedElsewhereError(kind, name, shown, is_leftover=is_leftover)

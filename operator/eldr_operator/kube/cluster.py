"""One look at everything that belongs to an EldrDeployment."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import owner_uids
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_METADATA_KINDS = ("Service", "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget")
_WHOLE_KINDS = ("Deployment", "StatefulSet", "Job")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found.

    Parameters
    ----------
    children : mapping
        Kind and name to object, for everything that carries our labels; some with metadata only.
    pods : list of dict
    routing, secret : dict or None
        The routing ConfigMap and the Secret of the admin ports, whoever owns them.
    """

    children: Mapping[tuple[str, str], Object]
    pods: list[Object]
    routing: Object | None
    secret: Object | None

    def owned(self, kind: str, name: str, uid: str) -> Object | None:
        """Return a child, if the resource of that uid owns it."""
        found = self.routing if kind == "ConfigMap" else self.children.get((kind, name))
        return found if found is not None and uid in owner_uids(found) else None

    def of_kind(self, kind: str) -> dict[str, Object]:
        """Return the children of a kind by name."""
        return {name: found for (its, name), found in self.children.items() if its == kind}

    def surplus(self, wanted: Iterable[Object], uid: str) -> list[tuple[str, Object]]:
        """Return the children that the resource of that uid owns and does not want any more."""
        kept = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
        return [
            (kind, found)
            for (kind, name), found in self.children.items()
            if kind != "Job" and (kind, name) not in kept and uid in owner_uids(found)
        ]

    @property
    def token(self) -> str:
        """The bearer token of the admin ports; empty while there is none."""
        try:
            return base64.b64decode(
                ((self.secret or {}).get("data") or {})[contract.SECRET_TOKEN_KEY]
            ).decode()
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return ""


async def look(api: Api, cr: EldrDeployment) -> Snapshot:
    """Read everything that belongs to a deployment, in parallel."""
    namespace, ours = cr.namespace, meta.owned_selector(cr.name)
    kinds = [*_METADATA_KINDS, *_WHOLE_KINDS]
    async with asyncio.TaskGroup() as group:
        lists = [
            group.create_task(api.list(kind, namespace, labels=ours, metadata_only=kind in _METADATA_KINDS))
            for kind in kinds
        ]
        pods = group.create_task(api.list("Pod", namespace, labels=f"{contract.LABEL_DEPLOYMENT}={cr.name}"))
        routing = group.create_task(api.get("ConfigMap", namespace, contract.routing_name(cr.name)))
        secret = group.create_task(api.get("Secret", namespace, contract.admin_secret_name(cr.name)))
    children = {
        (kind, found["metadata"]["name"]): found
        for kind, listed in zip(kinds, lists, strict=True)
        for found in listed.result()
    }
    return Snapshot(children, pods.result(), routing.result(), secret.result())

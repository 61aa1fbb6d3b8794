"""Writes the children of an EldrDeployment."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.errors import ApiError, OwnedElsewhereError, RequestFailedError
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier, owned_elsewhere, owner_uids
from eldr_operator.kube.cluster import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import desired

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Children that could not be written, by kind and name (empty for all of a kind), and why.

    Parameters
    ----------
    refused : dict
        What the API server does not accept.
    unavailable : dict
        What it failed at, as when an admission webhook is down.
    """

    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    unavailable: dict[tuple[str, str], str] = field(default_factory=dict)


class Children:
    """Writes children.

    Parameters
    ----------
    image : str
        Image of our own programs where the resource names none.
    """

    def __init__(self, api: Api, applier: Applier, image: str) -> None:
        self._api = api
        self._applier = applier
        self._image = image

    async def apply(
        self,
        cr: EldrDeployment,
        shards: Collection[str],
        live: Snapshot,
        broken: Collection[str],
        unreadable: Mapping[str, str],
    ) -> Unwritten:
        """Bring all children to their desired state.

        A child that the API server refuses, or fails at, does not keep the others from being written.

        Parameters
        ----------
        shards : collection of str
            ConfigMaps of the centroid sets that routers may be asked to load.
        broken : collection of str
            Roles whose workload stays as it is, because a field that it is made from cannot be used.
        unreadable : mapping
            Kinds that cannot be listed, and why: their children stay as they are.
        """
        untouched = {meta.child_name(cr, role) for role in broken}
        wanted = desired.children(_without_pod_templates(cr, broken), shards, self._image)
        left = Unwritten()
        for manifest in wanted:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind in {"Deployment", "StatefulSet"} and name in untouched:
                continue
            if kind in unreadable:
                left.refused[kind, ""] = f"each {kind} stays as it is: {unreadable[kind]}"
                continue
            try:
                owned = live.owned(kind, name, cr.metadata.uid)
                await self._applier.apply((cr.namespace, cr.name), manifest, owned)
            except OwnedElsewhereError as error:
                left.refused[kind, name] = str(error)
            except ApiError as error:
                left.refused[kind, name] = f"{kind} {name}: {error.message or error}"
            except RequestFailedError as error:
                left.unavailable[kind, name] = f"{kind} {name}: {error.message}"
        for kind, surplus in live.surplus(wanted, cr.metadata.uid):
            name = surplus["metadata"]["name"]
            try:
                await self._applier.delete(kind, surplus)
            except RequestFailedError as error:
                left.unavailable[kind, name] = f"{kind} {name} is to be deleted: {error.message}"
        return left

    async def ensure_secret(self, cr: EldrDeployment, live: Snapshot, left: Unwritten) -> None:
        """Create the Secret of the admin ports where there is none; tell what is wrong with a foreign one."""
        name, found = contract.admin_secret_name(cr.name), live.secret
        key = "Secret", name
        if found is None:
            token = secrets.token_urlsafe(32)
            manifest = desired.admin_secret(cr, name, contract.SECRET_TOKEN_KEY, token)
            try:
                await self._applier.create(manifest)
            except ApiError as error:
                if error.status != 409:
                    left.refused[key] = f"Secret {name}: {error.message or error}"
            except RequestFailedError as error:
                left.unavailable[key] = f"Secret {name}: {error.message}"
        elif cr.metadata.uid not in owner_uids(found):
            left.refused[key] = str(owned_elsewhere("Secret", cr.name, found))
        elif not live.token:
            left.refused[key] = (
                f"Secret {name} has no readable key {contract.SECRET_TOKEN_KEY}; delete it, it is created again"
            )


def _without_pod_templates(cr: EldrDeployment, roles: Collection[str]) -> EldrDeployment:
    patched = {contract.ROLE_PREFILL: cr.spec.prefill, contract.ROLE_DECODE: cr.spec.decode}
    plain = {
        role: spec.model_copy(update={"pod_template": {}}) for role, spec in patched.items() if role in roles
    }
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=plain)})

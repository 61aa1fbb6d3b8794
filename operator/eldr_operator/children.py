"""Writes the children of an EldrDeployment, and keeps the centroid sets that are in use."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from eldr import contract
from eldr_operator import desired
from eldr_operator.api import Api
from eldr_operator.apply import Applier, owner_uids
from eldr_operator.cluster import Snapshot
from eldr_operator.desired import _meta
from eldr_operator.desired.routing import Table
from eldr_operator.errors import ApiError, OwnedElsewhereError, Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validate import blocked_roles

Object = dict[str, Any]


class Children:
    """Writes children.

    Parameters
    ----------
    api : Api
    applier : Applier
    image : str
        Image of our own programs where the resource names none.
    """

    def __init__(self, api: Api, applier: Applier, image: str) -> None:
        self._api = api
        self._applier = applier
        self._image = image

    async def apply(
        self, cr: EldrDeployment, table: Table, live: Snapshot, problems: Collection[Problem]
    ) -> tuple[bool, list[str]]:
        """Bring all children to their desired state.

        A child that the API server refuses does not keep the others from being written. A workload that
        is made from a field with a problem stays as it is.

        Returns
        -------
        published : bool
            Whether the routing table was written.
        refused : list of str
            Children that could not be written, and why.
        """
        broken = blocked_roles(problems)
        untouched = {_meta.child_name(cr, role) for role in broken}
        wanted = desired.children(_without_pod_templates(cr, broken), table, self._image)
        refused: list[str] = []
        published = False
        for manifest in wanted:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind in {"Deployment", "StatefulSet"} and name in untouched:
                continue
            if kind == "ConfigMap" and refused:
                continue  # routers must not be told of shards that they may not read
            try:
                owned = live.owned(kind, name, cr.metadata.uid)
                await self._applier.apply((cr.namespace, cr.name), manifest, owned)
                published = published or kind == "ConfigMap"
            except OwnedElsewhereError as error:
                refused.append(str(error))
            except ApiError as error:
                refused.append(f"{kind} {name}: {error.message or error}")
        for kind, surplus in live.surplus(wanted, cr.metadata.uid):
            await self._applier.delete(kind, surplus)
        return published, refused

    async def ensure_secret(self, cr: EldrDeployment, live: Snapshot) -> str | None:
        """Create the Secret of the admin ports where there is none; return what is wrong with a foreign one."""
        name, found = contract.admin_secret_name(cr.name), live.secret
        if found is None:
            token = secrets.token_urlsafe(32)
            manifest = desired.admin_secret(cr, name, contract.SECRET_TOKEN_KEY, token)
            try:
                await self._applier.create(manifest)
            except ApiError as error:
                if error.status != 409:
                    return f"Secret {name}: {error.message or error}"
            return None
        if cr.metadata.uid not in owner_uids(found):
            return f"Secret {name} exists and is not ours; delete it, or rename the EldrDeployment"
        if not live.token:
            return (
                f"Secret {name} has no readable key {contract.SECRET_TOKEN_KEY}; delete it, it is made anew"
            )
        return None

    async def keep_sets(self, cr: EldrDeployment, table: Table) -> None:
        """Own the ConfigMaps of sets in use beside their EldrFit, and let go of the others.

        So deleting an EldrFit never collects a set that routers use.
        """
        selector = f"{contract.LABEL_DEPLOYMENT}={cr.name},{contract.LABEL_FIT}"
        kept = {cr.spec.centroids.pin, *(found.fit for found in table.sets)}
        for live in await self._api.list("ConfigMap", cr.namespace, labels=selector, metadata_only=True):
            metadata, owners = live["metadata"], owner_uids(live)
            wanted = metadata["labels"][contract.LABEL_FIT] in kept
            if wanted == (cr.metadata.uid in owners):
                continue
            if owners == [cr.metadata.uid]:
                # Its EldrFit is gone: without us nobody would ever collect it.
                await self._applier.delete("ConfigMap", live)
                continue
            await self._own("v1", "ConfigMap", live, _meta.owner_of(cr, controller=False) if wanted else None)

    async def adopt_fit(self, cr: EldrDeployment, live: Object) -> None:
        """Make an EldrFit that a user created go when its deployment goes."""
        if cr.metadata.uid not in owner_uids(live):
            owner = _meta.owner_of(cr, controller=False)
            await self._own(contract.API_VERSION, contract.KIND_FIT, live, owner)

    async def _own(self, api_version: str, kind: str, live: Object, owner: Object | None) -> None:
        # The uid keeps the apply from creating an empty object where this one has just gone.
        metadata: Object = {key: live["metadata"][key] for key in ("name", "namespace", "uid")}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        try:
            await self._applier.patch({"apiVersion": api_version, "kind": kind, "metadata": metadata})
        except ApiError as error:
            if error.status not in {404, 409}:
                raise


def _without_pod_templates(cr: EldrDeployment, roles: Collection[str]) -> EldrDeployment:
    plain = {role: getattr(cr.spec, role).model_copy(update={"pod_template": {}}) for role in roles}
    return cr.model_copy(update={"spec": cr.spec.model_copy(update=plain)})

"""Who owns centroid sets and EldrFits, so that nothing in use is collected and nothing else is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.errors import ApiError
from eldr_operator.kube.api import Api
from eldr_operator.kube.apply import Applier
from eldr_operator.kube.owners import owner_uids
from eldr_operator.kube.queue import Key
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]


class Ownership:
    """Writes owner references."""

    def __init__(self, api: Api, applier: Applier) -> None:
        self._api = api
        self._applier = applier
        self._kept: dict[Key, frozenset[str | None]] = {}

    async def keep_sets(self, cr: EldrDeployment, table: Table) -> None:
        """Own the ConfigMaps of sets in use beside their EldrFit, and let go of the others.

        So deleting an EldrFit never collects a set that routers use.
        """
        kept = frozenset({cr.spec.centroids.pin, *(pointer.fit for pointer in table.sets)})
        if self._kept.get((cr.namespace, cr.name)) == kept:
            return
        for live in await self._sets(cr) if cr.status or kept != {None} else ():  # a new one owns none
            owners, wanted = owner_uids(live), live["metadata"]["labels"][contract.LABEL_FIT] in kept
            if wanted == (cr.metadata.uid in owners):
                continue
            if owners == [cr.metadata.uid]:  # its EldrFit is gone: without us nobody would ever collect it
                await self._applier.delete("ConfigMap", live)
            else:
                owner = meta.owner_of(cr, controller=False) if wanted else None
                await self._own("v1", "ConfigMap", live, owner)
        self._kept[cr.namespace, cr.name] = kept

    async def _sets(self, cr: EldrDeployment) -> list[Object]:
        selector = f"{contract.LABEL_DEPLOYMENT}={cr.name},{contract.LABEL_FIT}"
        listed, _ = await self._api.list("ConfigMap", cr.namespace, labels=selector, metadata_only=True)
        return listed

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._kept.pop(key, None)

    async def adopt_fit(self, cr: EldrDeployment, live: Object) -> None:
        """Make an EldrFit that a user created go when its deployment goes."""
        owner = meta.owner_of(cr, controller=False)
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


def is_of_another(fit: Mapping[str, Any], uid: str) -> bool:
    """Tell whether a live EldrFit belongs to an earlier deployment of the same name: it was judged on that one's traffic.

    One without an owner was just created by a user, who may do so before the deployment is there.

    Parameters
    ----------
    uid : str
        Of the deployment that is there now.
    """
    owners = fit["metadata"].get("ownerReferences") or ()
    uids = {owner["uid"] for owner in owners if owner["kind"] == contract.KIND_DEPLOYMENT}
    return bool(uids) and uid not in uids

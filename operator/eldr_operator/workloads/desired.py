"""Desired state: custom resource -> manifests. Pure: no clock, no cluster, no randomness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import engines, network, rbac, router
from eldr_operator.workloads.images import Images

Object = dict[str, Any]


def children(
    cr: EldrDeployment, shards: Iterable[str], images: Images, outside: network.Outside
) -> list[Object]:
    """Return all children of a deployment but its routing ConfigMap, in the order in which they are applied.

    Parameters
    ----------
    shards : iterable of str
        ConfigMaps of the centroid sets that routers may be asked to load.
    images : Images
        Where the resource names none.
    outside : Outside
        Who reaches pods beside clients.
    """
    workloads = [engines.prefill(cr, images), engines.decode(cr, images)]
    if cr.spec.router.placement == "Deployment":
        workloads.append(router.deployment(cr, images.own))
    return [
        *rbac.accounts(cr),
        *rbac.roles(cr, shards),
        *network.policies(cr, outside),
        *network.services(cr),
        *workloads,
        *network.budgets(cr),
    ]


def admin_secret(cr: EldrDeployment, name: str, token: str) -> Object:
    """Return the Secret that guards the admin ports; created once, never applied."""
    head = meta.manifest("v1", "Secret", cr, name, meta.ROUTER)
    return head | {"stringData": {contract.SECRET_TOKEN_KEY: token}}

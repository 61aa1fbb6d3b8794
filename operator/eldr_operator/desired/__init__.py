"""Desired state: custom resource -> manifests. Pure: no clock, no cluster, no randomness."""

from __future__ import annotations

from typing import Any

from eldr_operator.desired import _meta, engines, network, rbac, router, routing
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]


def children(cr: EldrDeployment, table: routing.Table, image: str) -> list[Object]:
    """Return all children of a deployment, in the order in which they are applied.

    Roles come before the routing ConfigMap: routers may read a shard as soon as they are told its name.

    Parameters
    ----------
    cr : EldrDeployment
    table : Table
        Which centroid sets routers use.
    image : str
        Image of our own programs where the resource names none.
    """
    shards = [shard.name for pointer in table.sets for shard in pointer.shards]
    workloads = [engines.prefill(cr, image), engines.decode(cr, image)]
    if cr.spec.router.placement == "Deployment":
        workloads.append(router.deployment(cr, image))
    return [
        *rbac.accounts(cr),
        *rbac.roles(cr, shards),
        routing.config_map(cr, table),
        *network.services(cr),
        *workloads,
        *network.budgets(cr),
    ]


def admin_secret(cr: EldrDeployment, name: str, key: str, token: str) -> Object:
    """Return the Secret that guards the admin ports; created once, never applied."""
    return _meta.manifest("v1", "Secret", cr, name, _meta.ROUTER) | {"stringData": {key: token}}

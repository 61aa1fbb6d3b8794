"""Services and PodDisruptionBudgets. Pure."""

from __future__ import annotations

from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]


def services(cr: EldrDeployment) -> list[Object]:
    """Return the Service of clients, and the headless one that names decode pods."""
    routers = {contract.LABEL_DEPLOYMENT: cr.name, contract.LABEL_ROUTER: "true"}
    clients = meta.manifest("v1", "Service", cr, cr.name, contract.ROLE_ROUTER)
    decode = meta.manifest(
        "v1", "Service", cr, meta.child_name(cr, contract.ROLE_DECODE), contract.ROLE_DECODE
    )
    return [
        clients
        | {
            "spec": {
                "selector": routers,
                "ports": [_port("http", 80, contract.PORT_ROUTER)],
                "type": "ClusterIP",
            }
        },
        decode
        | {
            "spec": {
                "selector": meta.role_selector(cr, contract.ROLE_DECODE),
                "ports": [_port("engine", contract.PORT_ENGINE, contract.PORT_ENGINE)],
                "clusterIP": "None",
            }
        },
    ]


def _port(name: str, port: int, target: int) -> Object:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}


def budgets(cr: EldrDeployment) -> list[Object]:
    """Return PodDisruptionBudgets: one pod of a role at a time may be evicted."""
    roles = [contract.ROLE_PREFILL, contract.ROLE_DECODE]
    if cr.spec.router.placement == "Deployment":
        roles.append(contract.ROLE_ROUTER)
    return [
        meta.manifest("policy/v1", "PodDisruptionBudget", cr, meta.child_name(cr, role), role)
        | {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": meta.role_selector(cr, role)}}}
        for role in roles
    ]

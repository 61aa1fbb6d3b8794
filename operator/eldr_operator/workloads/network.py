"""Services, PodDisruptionBudgets and who may reach pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eldr import contract
from eldr_operator import meta
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]
_LABEL_NAMESPACE = "kubernetes.io/metadata.name"


class Outside(NamedTuple):
    """Who reaches pods of a deployment beside clients and its own pods.

    Attributes
    ----------
    operator : str
        Namespace of the operator; empty where it runs outside the cluster.
    monitoring : mapping
        Labels of the namespaces that read metrics; empty for none.
    """

    operator: str = ""
    monitoring: Mapping[str, str] = {}


def services(cr: EldrDeployment) -> list[Object]:
    """Return the Service of clients, and the headless one that names decode pods."""
    decode = meta.manifest(
        "v1", "Service", cr, meta.child_name(cr, contract.ROLE_DECODE), contract.ROLE_DECODE
    )
    return [
        _clients(cr),
        decode
        | {
            "spec": {
                "selector": meta.role_selector(cr, contract.ROLE_DECODE),
                "ports": [_port("engine", contract.PORT_ENGINE, contract.PORT_ENGINE)],
                "clusterIP": "None",
            }
        },
    ]


def _clients(cr: EldrDeployment) -> Object:
    """Return the Service of clients; ports of nodes and addresses stay the cluster's to choose."""
    asked = cr.spec.service
    head = meta.manifest("v1", "Service", cr, cr.name, contract.ROLE_ROUTER)
    if asked.annotations:
        head["metadata"]["annotations"] = dict(asked.annotations)
    spec: Object = {
        "selector": {contract.LABEL_DEPLOYMENT: cr.name, contract.LABEL_ROUTER: "true"},
        "ports": [
            _port(*(("https", 443) if cr.spec.router.tls_secret else ("http", 80)), contract.PORT_ROUTER)
        ],
        "type": asked.type,
    }
    if asked.load_balancer_class is not None:
        spec["loadBalancerClass"] = asked.load_balancer_class
    return head | {"spec": spec}


def _port(name: str, port: int, target: int) -> Object:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}


def budgets(cr: EldrDeployment) -> list[Object]:
    """Return PodDisruptionBudgets: one ready pod of a role at a time may be evicted, and any that is not ready: it serves nothing."""
    roles = [contract.ROLE_PREFILL, contract.ROLE_DECODE]
    if cr.spec.router.placement == "Deployment":
        roles.append(contract.ROLE_ROUTER)
    return [
        meta.manifest("policy/v1", "PodDisruptionBudget", cr, meta.child_name(cr, role), role)
        | {
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": meta.role_selector(cr, role)},
            }
        }
        for role in roles
    ]


def policies(cr: EldrDeployment, outside: Outside) -> list[Object]:
    """Return the NetworkPolicy of all pods, if the resource wants it.

    Engines trust whoever reaches them: one request with the wrong ``kv_transfer_params`` ends an engine of vLLM 0.32.
    """
    if cr.spec.network_policy == "Disabled":
        return []
    own = {"matchLabels": {contract.LABEL_DEPLOYMENT: cr.name}}
    ingress: list[Object] = [
        {"from": [{"podSelector": own}]},
        {"ports": [_allowed(contract.PORT_ROUTER)]},
    ]
    if outside.operator:
        ingress.append(_from({_LABEL_NAMESPACE: outside.operator}, contract.PORT_ADMIN))
    if outside.monitoring:
        ingress.append(_from(outside.monitoring, contract.PORT_ADMIN, contract.PORT_ENGINE))
    head = meta.manifest("networking.k8s.io/v1", "NetworkPolicy", cr, cr.name, meta.NETWORK)
    return [head | {"spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress}}]


def _from(namespaces: Mapping[str, str], *ports: int) -> Object:
    selector = {"matchLabels": dict(namespaces)}
    return {"from": [{"namespaceSelector": selector}], "ports": [_allowed(port) for port in ports]}


def _allowed(port: int) -> Object:
    return {"port": port, "protocol": "TCP"}

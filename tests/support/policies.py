"""Whom NetworkPolicies let in, as a cluster network that enforces them decides.

References
----------
.. [1] Kubernetes, "Network Policies": policies add up; a pod that none selects takes everybody; within a policy's ``from`` a peer's two
   selectors must both hold, and a peer without a namespace selector means the policy's own namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

Object = Mapping[str, Any]


class Peer(NamedTuple):
    """A pod: its namespace and that one's labels, and its own."""

    namespace: str
    namespace_labels: Mapping[str, str]
    labels: Mapping[str, str]


def admits(policies: Collection[Object], source: Peer, target: Peer, port: int) -> bool:
    """Tell whether a pod may open a TCP connection to a port of another one."""
    for each in policies:
        assert each["spec"]["policyTypes"] == ["Ingress"], f"not understood: {each['spec']['policyTypes']}"
    selecting = [
        each
        for each in policies
        if each["metadata"]["namespace"] == target.namespace
        and _selects(each["spec"]["podSelector"], target.labels)
    ]
    return not selecting or any(
        _is_from(rule, source, each["metadata"]["namespace"]) and _is_at(rule, port)
        for each in selecting
        for rule in each["spec"].get("ingress") or ()
    )


def _is_from(rule: Object, source: Peer, namespace: str) -> bool:
    assert rule.keys() <= {"from", "ports"}, f"not understood: {rule}"
    return not rule.get("from") or any(_means(peer, source, namespace) for peer in rule["from"])


def _means(peer: Object, source: Peer, namespace: str) -> bool:
    assert peer.keys() <= {"podSelector", "namespaceSelector"}, f"not understood: {peer}"
    if "namespaceSelector" in peer:
        is_there = _selects(peer["namespaceSelector"], source.namespace_labels)
    else:
        is_there = source.namespace == namespace
    return is_there and _selects(peer.get("podSelector", {}), source.labels)


def _is_at(rule: Object, port: int) -> bool:
    ports = rule.get("ports") or ()
    for each in ports:
        assert each.keys() <= {"port", "protocol"}, f"not understood: {each}"
    return not ports or any(
        each.get("port", port) == port and each.get("protocol", "TCP") == "TCP" for each in ports
    )


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, f"not understood: {selector}"
    return selector.get("matchLabels", {}).items() <= labels.items()

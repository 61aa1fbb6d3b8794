"""Whom NetworkPolicies let through. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from eldr import contract
from eldr.doctor.facts import Object
from eldr.status.fields import inside, objects, text

_NAMESPACE = "kubernetes.io/metadata.name"


def selecting(policies: Iterable[Object], labels: Mapping[str, str], direction: str) -> list[Object]:
    """Return the policies that limit the traffic of pods with these labels.

    Parameters
    ----------
    direction : str
        ``Ingress`` or ``Egress``.
    """
    return [
        policy
        for policy in policies
        if direction in _types(inside(policy, "spec"))
        and matches(inside(policy, "spec", "podSelector"), labels)
    ]


def may_pass(
    policies: Iterable[Object], direction: str, port: int, is_peer: Callable[[Object], bool]
) -> bool:
    """Tell whether a policy may let a peer through; where that cannot be known, it may.

    Parameters
    ----------
    is_peer : callable
        Whether an entry of ``from`` or ``to`` may be the peer; not asked of blocks of addresses, which may be anybody.
    """
    key, side = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    for policy in policies:
        for rule in objects(inside(policy, "spec"), key):
            if not _has_port(rule, port):
                continue
            sides = list(objects(rule, side))
            if not sides or any("ipBlock" in one or is_peer(one) for one in sides):
                return True
    return False


def pod(labels: Mapping[str, str], namespace: str) -> Callable[[Object], bool]:
    """Return what recognises a pod of a namespace."""

    def is_it(side: Object) -> bool:
        if "namespaceSelector" in side:
            selector = inside(side, "namespaceSelector")
            # of the namespace only its name is known, so only a selector by name excludes it
            by_name = not selector.get("matchExpressions") and inside(selector, "matchLabels").keys() <= {
                _NAMESPACE
            }
            if by_name and not matches(selector, {_NAMESPACE: namespace}):
                return False
        return matches(inside(side, "podSelector"), labels)

    return is_it


def client(side: Object) -> bool:
    """Tell whether an entry may be a client: anybody but the deployment's own pods."""
    return "namespaceSelector" in side or contract.LABEL_DEPLOYMENT not in inside(
        side, "podSelector", "matchLabels"
    )


def outside(_: Object) -> bool:
    """Tell whether an entry may be a host outside the cluster: selectors know pods only."""
    return False


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector takes labels; an empty one takes all."""
    exact = inside(selector, "matchLabels")
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        _meets(one, labels) for one in objects(selector, "matchExpressions")
    )


def _meets(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = text(expression, "key") or "", expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _types(spec: Object) -> list[str]:
    types = spec.get("policyTypes")
    if isinstance(types, list) and types:
        return types
    return ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]


def _has_port(rule: Object, port: int) -> bool:
    ports = list(objects(rule, "ports"))
    if not ports:
        return True
    for one in ports:
        wanted, last = one.get("port"), one.get("endPort")
        # a named port is one of the container's; which one is not looked up
        if wanted is None or isinstance(wanted, str):
            return True
        if isinstance(wanted, int) and wanted <= port <= (last if isinstance(last, int) else wanted):
            return True
    return False

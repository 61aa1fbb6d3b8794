"""ServiceAccounts, Roles and RoleBindings: each program gets what it calls, and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eldr import contract
from eldr_operator import meta
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment

Object = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"


def accounts(cr: EldrDeployment) -> list[Object]:
    """Return the ServiceAccounts of routers, engines and fits; engines have no permission and no token."""
    return [
        meta.manifest("v1", "ServiceAccount", cr, meta.child_name(cr, component), component)
        | {"automountServiceAccountToken": component == meta.FIT}
        for component in (meta.ROUTER, meta.ENGINE, meta.FIT)
    ]


def roles(cr: EldrDeployment, shards: Iterable[str]) -> list[Object]:
    """Return the Roles of routers and fits, and their bindings.

    Parameters
    ----------
    shards : iterable of str
        ConfigMaps of the centroid sets that routers may be asked to load.
    """
    router = [
        _rule(["pods"], ["get", "list", "watch"]),
        _rule(["configmaps"], ["get", "watch"], [contract.routing_name(cr.name), *sorted(set(shards))]),
    ]
    fit = [_rule(["pods"], ["get", "list"]), _rule(["configmaps"], ["get", "create"])]
    made = []
    for component, rules in ((meta.ROUTER, router), (meta.FIT, fit)):
        name = meta.child_name(cr, component)
        role = meta.manifest(f"{_RBAC}/v1", "Role", cr, name, component)
        binding = meta.manifest(f"{_RBAC}/v1", "RoleBinding", cr, name, component)
        made += [
            role | {"rules": rules},
            binding
            | {
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": cr.namespace}],
            },
        ]
    return made


def is_of_fits(manifest: Object) -> bool:
    """Tell whether only fits need a child: it comes with the first EldrFit, and goes with the last."""
    return bool(manifest["metadata"]["labels"][contract.LABEL_COMPONENT] == meta.FIT)


def fits_may_run(cr: EldrDeployment, live: Snapshot) -> bool:
    """Tell whether the rights of fits are there."""
    return _role(cr, live, meta.FIT) is not None


def readable(cr: EldrDeployment, live: Snapshot) -> frozenset[str]:
    """Return the ConfigMaps that routers may read now; empty where a part of their rights is missing."""
    role = _role(cr, live, meta.ROUTER)
    rules = (role or {}).get("rules") or ()
    return frozenset(
        each
        for rule in rules
        if "configmaps" in rule["resources"]
        for each in rule.get("resourceNames") or ()
    )


def _role(cr: EldrDeployment, live: Snapshot, component: str) -> Object | None:
    """Return the Role of a component; None where that, its binding or its account is missing."""
    name = meta.child_name(cr, component)
    role, *others = (
        live.owned(kind, name, cr.metadata.uid) for kind in ("Role", "RoleBinding", "ServiceAccount")
    )
    return role if all(others) else None


def _rule(kinds: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    rule: Object = {"apiGroups": [""], "resources": kinds, "verbs": verbs}
    return rule | {"resourceNames": names} if names else rule

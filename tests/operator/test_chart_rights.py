"""The rights that the chart gives, and why."""

from __future__ import annotations

import pytest

from eldr import contract
from tests.support.helm import rendered

READ, MADE = {"get", "list", "watch"}, {"get", "list", "watch", "create", "patch", "delete"}
RIGHTS = {
    ("eldr.dev", "eldrdeployments"): (READ, "what is wanted"),
    ("eldr.dev", "eldrdeployments/status"): ({"patch"}, "how it is"),
    ("eldr.dev", "eldrfits"): (MADE, "automatic fits, and the end of old ones"),
    ("eldr.dev", "eldrfits/status"): ({"patch"}, "how a fit ended"),
    ("eldr.dev", "eldrscalers"): (MADE, "/scale of each role"),
    ("eldr.dev", "eldrscalers/status"): ({"patch"}, "what autoscalers read"),
    ("apps", "deployments"): (MADE, "prefill engines, routers"),
    ("apps", "statefulsets"): (MADE, "decode engines"),
    ("apps", "controllerrevisions"): (MADE, "templates of pods"),
    ("batch", "jobs"): (READ | {"create", "delete"}, "fits, and downloads, of which old ones go"),
    ("policy", "poddisruptionbudgets"): (MADE, "one pod of a role at a time"),
    ("networking.k8s.io", "networkpolicies"): (MADE, "who may reach pods"),
    ("rbac.authorization.k8s.io", "roles"): (MADE, "what routers and fits may do"),
    ("rbac.authorization.k8s.io", "rolebindings"): (MADE, "the same"),
    ("", "services"): (MADE, "for clients, and names of decode pods"),
    ("", "serviceaccounts"): (MADE, "of routers, engines and fits"),
    ("", "configmaps"): (
        MADE,
        "routing tables, and sets that are no longer used; fits and routers are granted some of it",
    ),
    ("", "pods"): (READ, "what runs; routers are granted it"),
    ("", "secrets"): ({"create"}, "tokens of admin ports; none is read"),
    ("coordination.k8s.io", "leases"): ({"create"}, "the one of a namespace, once"),
    ("", "events"): ({"list", "create"}, "why pods are refused, and what has happened"),
}
"""Every right in the namespaces that are served, and why."""
OWN = {
    ("coordination.k8s.io", "leases", ()): ({"create"}, "the Lease, once"),
    ("coordination.k8s.io", "leases", ("eldr-operator",)): ({"get", "update"}, "which operator acts"),
    ("", "secrets", ()): ({"create"}, "the key, once"),
    ("", "secrets", ("eldr-operator-key",)): ({"get"}, "the key that tokens are derived from"),
}
"""Every right in the operator's own namespace, and why."""


@pytest.mark.process
def test_every_right_has_a_reason():
    made = rendered()
    rules = made["ClusterRole", "eldr-system-eldr-operator"]["rules"]
    found = {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "resourceNames" not in rule
    }
    assert found == {place: verbs for place, (verbs, _) in RIGHTS.items()}
    (named,) = (rule for rule in rules if "resourceNames" in rule)  # which release serves a namespace
    assert (named["resources"], named["resourceNames"], named["verbs"]) == (
        ["leases"],
        [contract.SERVED_LEASE],
        ["get", "update"],
    )
    own = {
        (rule["apiGroups"][0], rule["resources"][0], tuple(rule.get("resourceNames", ()))): set(rule["verbs"])
        for rule in made["Role", "eldr-operator-own"]["rules"]
    }
    assert own == {place: verbs for place, (verbs, _) in OWN.items()}
    assert {(kind, name) for kind, name in made if kind.endswith("Role")} == {
        ("ClusterRole", "eldr-system-eldr-operator"),
        ("Role", "eldr-operator-own"),
        ("ClusterRole", "eldr-system-eldr-view"),  # of people
        ("ClusterRole", "eldr-system-eldr-edit"),
        ("ClusterRole", "eldr-system-eldr-test"),  # while `helm test` runs
    }
    bound = {
        (made_["roleRef"]["name"], subject["name"])
        for (kind, _), made_ in made.items()
        if kind.endswith("RoleBinding")
        for subject in made_["subjects"]
    }
    assert bound == {
        ("eldr-system-eldr-operator", "eldr-operator"),
        ("eldr-operator-own", "eldr-operator"),
        ("eldr-system-eldr-test", "eldr-test"),
    }


@pytest.mark.process
def test_secrets_are_read_only_where_a_value_says_so():
    rules = rendered("--set", "rbac.readSecrets=true")["ClusterRole", "eldr-system-eldr-operator"]["rules"]
    assert next(rule["verbs"] for rule in rules if "secrets" in rule["resources"]) == ["create", "get"]


@pytest.mark.process
def test_roles_of_people_can_be_left_out():
    assert {
        kind for kind, name in rendered("--set=rbac.aggregate=false") if name.endswith(("-view", "-edit"))
    } == set()

"""People with Kubernetes' own roles view, edit and admin have them for our kinds too."""

from __future__ import annotations

import pytest

from tests.operator.test_rights import may
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

GROUP = "eldr.dev"
PLURALS = ("eldrdeployments", "eldrfits", "eldrscalers")
READS = {(verb, plural, "") for verb in ("get", "list", "watch") for plural in PLURALS} | {
    ("get", "eldrscalers", "scale"),
    ("get", "eldrdeployments", "status"),
}
WRITES = {
    (verb, plural, "") for verb in ("create", "update", "patch", "delete") for plural in PLURALS[:2]
} | {("patch", "eldrscalers", "scale"), ("delete", "eldrscalers", "")}
NEVER = {
    ("patch", "eldrdeployments", "status"),
    ("patch", "eldrfits", "status"),
    ("create", "eldrscalers", ""),
}


@pytest.mark.parametrize(
    ("role", "rights"), [("view", READS), ("edit", READS | WRITES), ("admin", READS | WRITES)]
)
def test_a_role_of_kubernetes_holds_for_our_kinds(kube, role, rights):
    kube.create("ServiceAccount", {"name": role})
    subject = {"kind": "ServiceAccount", "name": role, "namespace": kube.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    kube.create("RoleBinding", {"name": role}, roleRef=reference, subjects=[subject])
    with kube.as_account(role) as person:

        def allowed() -> set[tuple[str, str, str]]:
            return {
                (verb, plural, subresource)
                for verb, plural, subresource in READS | WRITES | NEVER
                if may(person, verb, plural, group=GROUP, subresource=subresource)
            }

        wait_for(lambda: allowed() == rights, f"the rights of {role}", 30, allowed)

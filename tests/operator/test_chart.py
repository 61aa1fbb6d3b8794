"""The chart: what it renders, and that it installs an operator that works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.operator.world import KIND, simulated
from tests.support.helm import CHART, rendered
from tests.support.kube import Kube, delete_crds
from tests.support.processes import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def render():
    return rendered


@pytest.mark.process
def test_crds_are_those_of_the_source_and_survive_uninstall(render):
    subprocess.run([sys.executable, ROOT / "hack" / "chart-crds", "--check"], check=True)
    crds = {name: made for (kind, name), made in render().items() if kind == "CustomResourceDefinition"}
    for path in (ROOT / "crds").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())
        made = crds.pop(source["metadata"]["name"])
        assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert made == source
    assert crds == {}
    assert not [
        kind for kind, _ in render("--set", "crds.install=false") if kind == "CustomResourceDefinition"
    ]


@pytest.mark.process
def test_pod_is_restricted(render):
    spec = render()["Deployment", "eldr-operator"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "--all-namespaces" in container["args"]


@pytest.mark.process
def test_watched_namespaces_get_roles_and_a_cluster_role_that_only_asks_whether_they_exist(render):
    made = render("--set", "watchNamespaces={a,b}")
    (rule,) = made["ClusterRole", "eldr-system-eldr-operator"]["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["namespaces"],
        "resourceNames": ["a", "b"],
        "verbs": ["get"],
    }
    assert ("ClusterRoleBinding", "eldr-system-eldr-operator") in made
    (container,) = made["Deployment", "eldr-operator"]["spec"]["template"]["spec"]["containers"]
    assert [arg for arg in container["args"] if "namespace" in arg] == [
        "--namespace=a",
        "--namespace=b",
        "--lease-namespace=eldr-system",
        "--key-namespace=eldr-system",
    ]


@pytest.mark.process
def test_namespaces_that_read_metrics(render):
    made = render(
        "--set-json", 'monitoring.namespaceSelector={"kubernetes.io/metadata.name":"monitoring","a":"b"}'
    )
    (container,) = made["Deployment", "eldr-operator"]["spec"]["template"]["spec"]["containers"]
    given = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--monitoring-namespaces=")]
    assert sorted(given) == ["a=b", "kubernetes.io/metadata.name=monitoring"]


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
    ("batch", "jobs"): (READ | {"create"}, "fits; a deleted EldrFit takes its Job along"),
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
def test_every_right_has_a_reason(render):
    made = render()
    rules = made["ClusterRole", "eldr-system-eldr-operator"]["rules"]
    found = {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert found == {place: verbs for place, (verbs, _) in RIGHTS.items()}
    assert not any("resourceNames" in rule for rule in rules)
    own = {
        (rule["apiGroups"][0], rule["resources"][0], tuple(rule.get("resourceNames", ()))): set(rule["verbs"])
        for rule in made["Role", "eldr-operator-own"]["rules"]
    }
    assert own == {place: verbs for place, (verbs, _) in OWN.items()}
    assert {kind for kind, _ in made if kind.endswith("Role")} == {"ClusterRole", "Role"}
    assert len([kind for kind, _ in made if kind in {"ClusterRole", "Role"}]) == 2


@pytest.mark.process
def test_secrets_are_read_only_where_a_value_says_so(render):
    rules = render("--set", "rbac.readSecrets=true")["ClusterRole", "eldr-system-eldr-operator"]["rules"]
    assert next(rule["verbs"] for rule in rules if "secrets" in rule["resources"]) == ["create", "get"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--set=replicas=0", "/replicas"),
        ("--set=replica=2", "replica"),
        ("--set=logLevel=loud", "/logLevel"),
        ("--set=resyncSeconds=0", "/resyncSeconds"),
        ("--set=watchNamespaces={Not_A_Namespace}", "/watchNamespaces/0"),
        ("--set=image.repository=", "/image/repository"),
        ("--set=metrics.port=0", "/metrics/port"),
        ("--set=monitoring.podMonitors.interval=often", "/monitoring/podMonitors/interval"),
        ("--set=monitoring.podMonitors.enabled=yes", "/monitoring/podMonitors/enabled"),
        ("--set=monitoring.rules.on=true", "/monitoring/rules"),
        ("--set=monitoring.dashboard.labels.a=1", "/monitoring/dashboard/labels/a"),
    ],
)
def test_wrong_values_are_refused(render, option, message):
    with pytest.raises(AssertionError, match=message):
        render(option)


WHOLE = {"resources", "nodeSelector", "affinity"}
"""Values that Kubernetes defines."""


def leaves(values, path=()):
    """Yield the names of all values."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in WHOLE:
            yield from leaves(value, (*path, name))
        else:
            yield ".".join((*path, name))


def test_every_value_is_described():
    text = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    # labels that are there by default may be replaced, as all labels may
    named = {name.replace(".grafana_dashboard", "") for name in leaves(values)}
    assert {name for name in named if f"`{name}`" not in text} == set()


@pytest.mark.kube
def test_installed_by_helm_it_reconciles(cluster, namespace):
    """In a pod of its own, with its own account; a namespaced installation."""
    release = ["eldr", str(CHART), "--namespace", namespace, "--set", f"watchNamespaces={{{namespace}}}"]
    cluster.helm("install", *release, "--wait", "--timeout", "120s")
    with Kube(cluster, namespace) as kube:
        kube.create(KIND, {"name": "x"}, spec=simulated(router={"placement": "Deployment"}))
        wait_for(
            lambda: kube.condition(KIND, "x", "DecodeReady").get("status") == "True", "decode engines", 90
        )
        wait_for(
            lambda: kube.condition(KIND, "x", "PrefillReady").get("status") == "True", "prefill engines", 90
        )
        cluster.helm("uninstall", "eldr", "--namespace", namespace, "--wait")
        assert kube.get(KIND, "x"), "an uninstalled operator takes nothing with it"
        kube.delete(KIND, "x")
        wait_for(lambda: not kube.list("StatefulSet"), "children gone", 60)
    delete_crds(cluster)

"""The chart: what it renders."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.helm import CHART, manifests, rendered

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
def test_operators_that_crash_keep_no_node_from_being_drained(render):
    (budget,) = (
        made for (kind, _), made in render("--set", "replicas=2").items() if kind == "PodDisruptionBudget"
    )
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


TEXTS = {"name", "namespace", "secretName", "serviceAccountName", "priorityClassName"}


def texts(value, key=None):
    """Yield names, labels, arguments and the like of a manifest, with their keys."""
    match value:
        case dict():
            for name, inner in value.items():
                of_texts = key in {"labels", "matchLabels", "annotations"} or name in TEXTS
                yield from [(name, inner)] if of_texts else texts(inner, name)
        case list() if key in {"args", "resourceNames"}:
            yield from ((key, inner) for inner in value)
        case list():
            for inner in value:
                yield from texts(inner, key)


@pytest.mark.process
@pytest.mark.parametrize("name", ["y", "on", "123", "1e3", "null"])
def test_names_that_yaml_reads_as_something_else_stay_texts(name):
    options = [
        f"--set-string={value}"
        for value in (
            f"watchNamespaces={{{name}}}",
            f"tests.namespace={name}",
            f"tests.deployment={name}",
            f"tests.apiKey.secretName={name}",
            f"tests.apiKey.entry={name}",
            f"tests.ca.secretName={name}",
            f"tests.ca.entry={name}",
            f"serviceAccount.name={name}",
            f"priorityClassName={name}",
        )
    ]
    made = manifests(*options, "--set=crds.install=false", release=name, namespace=name)
    assert [found for one in made for found in texts(one) if not isinstance(found[1], str)] == []
    accounts = [one for one in made if one["kind"] == "ServiceAccount"]
    assert name in {one["metadata"]["name"] for one in accounts}
    assert {one["metadata"]["namespace"] for one in accounts} == {name}


@pytest.mark.process
@pytest.mark.parametrize(("enabled", "count"), [("true", True), ("false", False)])
def test_it_can_be_an_optional_dependency(enabled, count, tmp_path):
    shutil.copytree(CHART, tmp_path / "charts" / "eldr")
    dependency = {"name": "eldr", "version": "*", "condition": "eldr.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "0.1.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    made = manifests(f"--set=eldr.enabled={enabled}", "--set=global.registry=r.example.com", chart=tmp_path)
    assert bool(made) == count


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
def test_security_contexts_are_values_with_the_restricted_ones_as_defaults(render):
    """As OpenShift wants it, which chooses users by itself; and none at all."""
    removed = ["runAsUser", "runAsGroup", "fsGroup"]
    made = render(*(f"--set=podSecurityContext.{name}=null" for name in removed))
    for pod in pods(made):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for pod in pods(render("--set", "podSecurityContext=null", "--set", "securityContext=null")):
        (container,) = pod["containers"]
        assert "securityContext" not in {*pod, *container}
    operator, test = pods(render())
    assert operator["securityContext"] == test["securityContext"]
    assert operator["containers"][0]["securityContext"] == test["containers"][0]["securityContext"]


def pods(made):
    """Return the operator's pod and that of the test."""
    return (
        made["Deployment", "eldr-operator"]["spec"]["template"]["spec"],
        made["Pod", "eldr-test"]["spec"],
    )


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--set=logLevel=loud", "/logLevel"),
        ("--set=watchNamespaces={Not_A_Namespace}", "/watchNamespaces/0"),
        ("--set=image.repository=", "/image/repository"),
        ("--set=monitoring.podMonitors.interval=often", "/monitoring/podMonitors/interval"),
        ("--set=tests=null", "--reset-then-reuse-values"),
        ("--set=tests.url=models.example.com", "/tests/url"),
        ("--set=podSecurityContext=none", "/podSecurityContext"),
        ("--set=monitoring.dashboard.labels.a=1", "/monitoring/dashboard/labels/a"),
    ],
)
def test_wrong_values_are_refused(render, option, message):
    with pytest.raises(AssertionError, match=message):
        render(option)


WHOLE = {"resources", "nodeSelector", "affinity", "podSecurityContext", "securityContext"}
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

"""Helm on a real cluster: install, test, uninstall, and install again under another name."""

from __future__ import annotations

import json

import pytest

from eldr import contract
from eldr_kube.cluster import CommandError
from tests.operator.world import KIND, simulated
from tests.support.helm import CHART, manifests, rendered
from tests.support.kube import Kube, delete_crds
from tests.support.processes import wait_for

CRDS = sorted(
    f"{plural}.{contract.GROUP}" for plural in (contract.DEPLOYMENTS, contract.FITS, contract.SCALERS)
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "asked", "roles"),
    [
        ([], ["--all-namespaces"], {("ClusterRole", "eldr-system-eldr-test", None)}),
        (
            ["--set=watchNamespaces={a,b}"],
            ["--namespace=a", "--namespace=b"],
            {("Role", "eldr-test", "a"), ("Role", "eldr-test", "b")},
        ),
        (
            ["--set=tests.namespace=c", "--set=tests.deployment=x", "--set=tests.url=https://e"],
            ["x", "--namespace=c", "--url=https://e"],
            {("Role", "eldr-test", "c")},
        ),
    ],
    ids=["everywhere", "served namespaces", "one"],
)
def test_the_test_may_list_deployments_where_it_looks_and_nothing_else(options, asked, roles):
    made = manifests("--show-only", "templates/tests/smoke.yaml", *options)
    found = [one for one in made if one["kind"] in {"Role", "ClusterRole"}]
    assert {
        (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) for one in found
    } == roles
    listing = {"apiGroups": ["eldr.dev"], "resources": ["eldrdeployments"], "verbs": ["list"]}
    assert all(one["rules"] == [listing] for one in found)
    (pod,) = (one for one in made if one["kind"] == "Pod")
    assert pod["spec"]["containers"][0]["args"] == ["smoke", *asked, "--timeout-seconds=60"]
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in made} == {"test"}


@pytest.mark.process
def test_the_test_finds_a_key_and_an_authority_in_secrets():
    sets = [
        f"--set=tests.{value}" for value in ("apiKey.secretName=k", "apiKey.entry=alice", "ca.secretName=c")
    ]
    pod = rendered(*sets)["Pod", "eldr-test"]["spec"]
    (container,) = pod["containers"]
    (key,) = container["env"]
    assert key == {"name": "ELDR_API_KEY", "valueFrom": {"secretKeyRef": {"name": "k", "key": "alice"}}}
    assert "--ca=/ca/ca.crt" in container["args"]
    assert pod["volumes"][-1]["secret"] == {"secretName": "c", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    with pytest.raises(AssertionError, match=r"tests\.apiKey\.entry: empty; name the entry of Secret k"):
        rendered(sets[0])


@pytest.mark.process
def test_the_operators_selector_does_not_take_the_test():
    made = rendered()
    wanted = made["Deployment", "eldr-operator"]["spec"]["selector"]["matchLabels"].items()
    assert not wanted <= made["Pod", "eldr-test"]["metadata"]["labels"].items()


@pytest.fixture
def left(cluster):
    """Delete what an uninstalled chart leaves."""
    yield
    delete_crds(cluster)


@pytest.mark.kube
@pytest.mark.costly
@pytest.mark.usefixtures("left")
def test_installed_by_helm_it_reconciles_and_passes_its_test(cluster, namespace):
    """In a pod of its own, with its own account; a namespaced installation."""
    release = ["eldr", str(CHART), "--namespace", namespace, "--set", f"watchNamespaces={{{namespace}}}"]
    cluster.helm("install", *release, "--wait", "--timeout", "120s")
    with Kube(cluster, namespace) as kube:
        with pytest.raises(CommandError):
            cluster.helm("test", "eldr", "--namespace", namespace, "--timeout", "60s")
        log = cluster.kubectl("logs", "eldr-test", "-n", namespace)
        assert f"there is no EldrDeployment in namespace {namespace}. Create one" in log
        kube.create("Secret", {"name": "clients"}, stringData={"alice": "a-key-of-alice"})
        guarded = {"placement": "Deployment", "apiKeysSecret": "clients"}
        kube.create(KIND, {"name": "x"}, spec=simulated(router=guarded))
        kube.until_condition(KIND, "x", "Ready", status="True", seconds=120)
        # the embedded cluster routes no Services: the request goes to the router behind it
        router, *_ = kube.list("Pod", f"{contract.LABEL_ROUTER}=true")
        url = f"http://{router['status']['podIP']}:{contract.PORT_ROUTER}"
        release += ["--set", f"tests.url={url}", "--wait", "--timeout", "120s"]
        cluster.helm("upgrade", *release)
        with pytest.raises(CommandError):
            cluster.helm("test", "eldr", "--namespace", namespace, "--timeout", "60s")
        assert "answers with status 401" in cluster.kubectl("logs", "eldr-test", "-n", namespace)
        keys = ["--set", "tests.apiKey.secretName=clients", "--set", "tests.apiKey.entry=alice"]
        cluster.helm("upgrade", *release, *keys)
        said = cluster.helm("test", "eldr", "--namespace", namespace, "--logs", "--timeout", "60s")
        assert f"EldrDeployment {namespace}/x answered: 8 tokens of " in said
        left = kube.list("ServiceAccount") + kube.list("Role") + kube.list("RoleBinding")
        assert "eldr-test" not in {each["metadata"]["name"] for each in left}
        cluster.helm("uninstall", "eldr", "--namespace", namespace, "--wait")
        assert kube.get(KIND, "x"), "an uninstalled operator takes nothing with it"
        kube.delete(KIND, "x")
        wait_for(lambda: not kube.list("StatefulSet"), "children gone")


def owners(cluster):
    """Return the releases that own the CustomResourceDefinitions."""
    listed = json.loads(cluster.kubectl("get", "crd", *CRDS, "-o", "json"))["items"]
    return {each["metadata"]["annotations"]["meta.helm.sh/release-name"] for each in listed}


@pytest.mark.kube
@pytest.mark.costly
@pytest.mark.usefixtures("left")
def test_another_release_takes_the_definitions_over_or_leaves_them(cluster, namespace):
    """The two ways of the chart's README, and what Helm says without them."""
    other = f"{namespace}-system"
    system = ["--namespace", other, "--create-namespace", "--set", "replicas=1"]
    serves = [*system, "--set", f"watchNamespaces={{{namespace}}}"]
    cluster.helm("install", "first", str(CHART), *serves)
    with Kube(cluster, namespace) as kube:
        kube.create(KIND, {"name": "x"}, spec=simulated())

        def refused():
            with pytest.raises(CommandError, match="invalid ownership metadata"):
                cluster.helm("install", "second", str(CHART), *serves)

        refused()  # beside the first
        beside = ["--set", f"watchNamespaces={{{other}}}", "--set", "crds.install=false"]
        cluster.helm("install", "second", str(CHART), *system, *beside)
        assert owners(cluster) == {"first"}
        for release in ("second", "first"):
            cluster.helm("uninstall", release, "--namespace", other)
        refused()  # after it
        cluster.helm("install", "second", str(CHART), *serves, "--take-ownership")
        assert owners(cluster) == {"second"}
        assert kube.get(KIND, "x"), "no EldrDeployment is lost"
        cluster.helm("upgrade", "second", str(CHART), *serves)
        cluster.helm("uninstall", "second", "--namespace", other)
        kube.delete(KIND, "x")
    cluster.delete_namespace(other)

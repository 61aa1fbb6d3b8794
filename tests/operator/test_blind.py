"""What cannot be read is told, and nothing else stops; it goes on by itself once it can be read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from eldr_kube.cluster import Cluster
from tests.operator.conftest import SYSTEM, Operator
from tests.operator.world import FIT, KIND, World
from tests.support.helm import CHART
from tests.support.kube import Kube, Object, Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/eldr-system-eldr-operator"


@contextmanager
def without(operator: Operator, resource: str, verb: str) -> Iterator[None]:
    """Take a right from the operator."""
    with Kube(operator.cluster, SYSTEM) as kube:
        before = kube.request("GET", ROLE)["rules"]
        rules = [{**rule, "resources": [name]} for rule in before for name in rule["resources"]]
        for rule in rules:
            if rule["resources"] == [resource]:
                rule["verbs"] = [one for one in rule["verbs"] if one != verb]
        kube.request("PATCH", ROLE, {"rules": rules}, "application/merge-patch+json")
        try:
            yield
        finally:
            kube.request("PATCH", ROLE, {"rules": before}, "application/merge-patch+json")
    operator.until_ready()


def restart(operator: Operator) -> None:
    """Start the operator anew, whatever it can read."""
    operator.stop()
    operator.start(is_ready=False)


@pytest.mark.parametrize(
    ("kind", "plural", "name"),
    [
        ("PodDisruptionBudget", "poddisruptionbudgets", "x-prefill"),
        ("NetworkPolicy", "networkpolicies", "x"),
    ],
)
def test_a_kind_that_may_not_be_listed_keeps_nothing_else(operator, world, kind, plural, name):
    with without(operator, plural, "list"):
        restart(operator)
        world.deploy()
        condition = world.condition("ConfigValid", status="False", reason="ChildRefused")
        assert f"cannot list {plural} in all namespaces: 403" in condition["message"]
        assert f"each {kind} stays as it is" in condition["message"]
        world.run_pods()
        world.condition("Available", status="True")
        assert world.kube.find(kind, name) is None
        status, text = operator.asked("/readyz")
        assert (status, text.splitlines()[0].split(":")[0]) == (503, f"{plural} in all namespaces")
        assert f'eldr_operator_blind{{kind="{kind}",namespace=""}} 1.0' in operator.metrics()
        assert operator.is_healthy()
    wait_for(lambda: world.kube.find(kind, name), "what was left out")
    world.condition("ConfigValid", status="True")
    assert "eldr_operator_blind{" not in operator.metrics()


def test_pods_that_may_not_be_listed_make_the_state_unknown(operator, world):
    world.up()
    with without(operator, "pods", "list"):
        restart(operator)
        condition = world.condition("Ready", status="Unknown", reason="ClusterUnreadable")
        assert "cannot list pods in all namespaces: 403" in condition["message"]
        assert world.kube.condition(KIND, "x", "DecodeReady")["status"] == "True", "as it was seen last"
    world.condition("Ready", status="True")


def test_a_watch_that_may_not_be_opened_is_told_and_lists_take_its_place(operator, world):
    with without(operator, "statefulsets", "watch"):
        restart(operator)
        world.deploy()
        world.make_ready()
        status, text = operator.asked("/readyz")
        assert (status, text) == (
            503,
            "statefulsets in all namespaces: its watch fails; changes are seen at the next list\n",
        )


def test_what_is_nested_very_deep_is_told_and_keeps_nothing_else(operator, world):
    levels = 9900  # the API server takes 10,000
    deep = '{"a":' * levels + "1" + "}" * levels
    model = '"model":{"uri":"org/model"},"prefill":{"gpus":0},"engine":{"type":"Simulator"}'
    spec = f'{{{model},"decode":{{"gpus":0,"podTemplate":{{"spec":{deep}}}}}}}'
    head = f'"apiVersion":"eldr.dev/v1alpha1","kind":"{KIND}","metadata":{{"name":"deep"}}'
    run, where = operator.cluster.kubectl, ("-n", world.kube.namespace)
    seen = operator.log.stat().st_size
    told = 'jsonpath={.status.conditions[?(@.type=="ConfigValid")].reason}'
    run(*where, "create", "-f", "-", stdin=f'{{{head},"spec":{spec}}}')
    try:
        wait_for(
            lambda: run(*where, "get", KIND, "deep", "-o", told) == "InvalidPodTemplate", "a condition", 30
        )
        assert world.kube.find("Deployment", "deep-prefill"), "the other role is made"
        world.up()
        restart(operator)
        operator.until_ready()
        world.patch(decode={"replicas": 3})
        world.make_ready()
    finally:
        run(*where, "delete", KIND, "deep", "--wait=true", "--timeout=30s")
    assert b"watches ended" not in operator.log.read_bytes()[seen:]


def test_resources_that_are_gone_and_come_back_need_no_restart(operator, kube):
    world = World(kube)
    world.up()
    crd = operator.cluster.kubectl("get", "crd", "eldrfits.eldr.dev", "-o", "json")
    operator.cluster.kubectl("delete", "crd", "eldrfits.eldr.dev", "--wait=true", "--timeout=60s")
    wait_for(lambda: operator.asked("/readyz")[0] == 503, "not ready", 90, operator.said)
    assert operator.is_healthy()
    kept = json.loads(crd)
    made = {key: kept["metadata"].get(key) for key in ("name", "labels", "annotations")}
    kept = {key: kept[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": made}
    operator.cluster.kubectl("create", "-f", "-", stdin=json.dumps(kept))
    wait_for(lambda: operator.asked("/readyz")[0] == 200, "ready", 90, operator.said)
    wait_for(lambda: _is_served(kube), "the resource is served")
    before = operator.passes()
    world.serve("one")
    world.close()
    wait_for(lambda: operator.passes() > before, "passes")
    assert "watches ended" in operator.log.read_text(), "kopf began again"


def _is_served(kube: Kube) -> bool:
    try:
        return kube.list(FIT) == []
    except Refused:  # "storage is (re)initializing"
        return False


@pytest.fixture
def two(installed: Cluster, unattended: None, kube: Kube, tmp_path: Path) -> Iterator[Operator]:
    """An operator that serves the test's namespace and another one."""
    other, system = f"{kube.namespace}-b", f"{kube.namespace}-system"
    namespaces = [kube.namespace, other]
    for name in (other, system):
        installed.kubectl("create", "namespace", name)
    rendered = installed.helm(
        *("template", "eldr", str(CHART), "--namespace", system, "--skip-tests"),
        *("--set", "crds.install=false", "--set", "rbac.aggregate=false"),
        *("--set", f"watchNamespaces={{{','.join(namespaces)}}}"),
    )
    manifests: list[Object] = [one for one in yaml.safe_load_all(rendered) if one]
    kept = [one for one in manifests if one["kind"] != "Deployment"]
    installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))
    running = Operator(installed, tmp_path, system=system, namespaces=namespaces)
    running.start()
    yield running
    running.stop()
    installed.kubectl("delete", "namespace", system, "--wait=false")
    installed.kubectl("delete", "clusterrole,clusterrolebinding", f"{system}-eldr-operator")


@pytest.mark.timeout(300)
def test_a_namespace_that_is_deleted_leaves_the_others_alone(two, kube):
    world = World(kube)
    try:
        world.up()
        two.cluster.kubectl("delete", "namespace", f"{kube.namespace}-b", "--wait=true", "--timeout=60s")
        wait_for(lambda: "does not exist" in two.log.read_text(), "noticed", 90, two.said)
        two.until_ready()
        world.patch(decode={"replicas": 3})
        world.make_ready()
        restart(two)
        two.until_ready()
        world.patch(decode={"replicas": 2})
        world.make_ready()
        assert "eldr_operator_blind{" not in two.metrics()
    finally:
        world.close()

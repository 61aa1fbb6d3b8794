"""The chart's alerts, by promtool; and its monitoring objects, on an API server that has the Prometheus Operator's definitions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from eldr import contract
from eldr_operator.models import EldrDeployment, parse
from eldr_operator.workloads import desired
from eldr_operator.workloads.images import Images
from eldr_operator.workloads.network import Outside
from tests.support.helm import CHART, rendered
from tests.support.modules import module
from tests.support.prometheus import program

RULES = CHART / "files" / "rules.yaml"
ALERTS = Path(__file__).with_name("alerts.yaml")
DEFINITIONS = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
ON = [f"--set=monitoring.{what}.enabled=true" for what in ("podMonitors", "rules", "dashboard")]


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_alerts_fire_by_their_causes_and_only_then(tmp_path):
    text = ALERTS.read_text()
    path = tmp_path / "alerts.yaml"
    path.write_text(text.replace("RULES", str(RULES)))
    assert "SUCCESS" in promtool("test", "rules", path)
    alerts = {
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }
    assert set(re.findall(r'alertname="(\w+)"', text)) == alerts


@pytest.mark.process
def test_nothing_of_monitoring_is_there_by_default():
    assert {kind for kind, _ in rendered()} & {"PodMonitor", "PrometheusRule", "ConfigMap"} == set()


@pytest.mark.process
def test_pod_monitors_select_what_the_operator_makes():
    """Their selectors and ports, on the pods of a deployment with either placement of routers."""
    made = rendered("--set", "monitoring.podMonitors.enabled=true")
    assert made["PodMonitor", "eldr-engines"]["spec"]["namespaceSelector"] == {"any": True}
    tls = {"adminTLS": {"secretName": "a", "authorityConfigMap": "b"}}
    for placement, routers, more in (
        ("Sidecar", {"prefill"}, {}),
        ("Deployment", {"router"}, {}),
        ("Deployment", {"router"}, tls),
    ):
        found = {"routers": set(), "engines": set()}
        for template in templates(router={"placement": placement, **more}):
            labels = template["metadata"]["labels"]
            pod = template["spec"]
            ports = {
                port["name"]
                for each in [*pod["containers"], *pod.get("initContainers", ())]
                for port in each.get("ports", ())
            }
            for what, roles in found.items():
                spec = made["PodMonitor", f"eldr-{what}"]["spec"]
                if selects(spec["selector"], labels):
                    named = [one["port"] for one in spec["podMetricsEndpoints"]]
                    assert [port for port in named if port in ports] == (
                        ["admin-tls"] if more and what == "routers" else [named[0]]
                    )
                    roles.add(labels[contract.LABEL_ROLE])
        assert found == {"routers": routers, "engines": {"prefill", "decode"}}


def templates(**spec):
    """Return the templates of the pods that a deployment gets."""
    metadata = {"name": "x", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
    body = {"metadata": metadata, "spec": {"model": {"uri": "m"}, "engine": {"type": "Simulator"}, **spec}}
    made = desired.children(parse(EldrDeployment, body), (), Images("eldr:test"), Outside())
    return [each["spec"]["template"] for each in made if each["kind"] in {"Deployment", "StatefulSet"}]


def selects(selector, labels):
    """Tell whether a label selector takes labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", ()))


@pytest.fixture(scope="module")
def definitions(api_server, tmp_path_factory):
    """The Prometheus Operator's kinds."""
    folder = (
        module(DEFINITIONS, tmp_path_factory.mktemp("prometheus-operator"))
        / "example"
        / "prometheus-operator-crd"
    )
    names = ("podmonitors", "prometheusrules")
    for name in names:
        api_server.kubectl("create", "-f", str(folder / f"monitoring.coreos.com_{name}.yaml"))
    crds = [f"crd/{name}.monitoring.coreos.com" for name in names]
    api_server.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s")
    yield
    api_server.kubectl("delete", *crds)


@pytest.mark.kube
@pytest.mark.usefixtures("definitions")
@pytest.mark.parametrize("namespaces", [[], ["--set=watchNamespaces={a,b}"]], ids=["all", "some"])
def test_the_api_server_takes_them_strictly(api_server, bare_namespace, namespaces):
    manifests = api_server.helm(
        *("template", "eldr", str(CHART), "--namespace", bare_namespace, *ON, *namespaces),
        *("--show-only", "templates/monitoring.yaml"),
    )
    made = api_server.kubectl("create", "--validate=strict", "-o", "name", "-f", "-", stdin=manifests).split()
    assert sorted(made) == [
        "configmap/eldr-dashboard",
        *(f"podmonitor.monitoring.coreos.com/eldr-{what}" for what in ("engines", "operator", "routers")),
        "prometheusrule.monitoring.coreos.com/eldr",
    ]

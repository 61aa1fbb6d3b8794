"""The operator's metrics: conditions of resources, for as long as the resources are there."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from eldr.contract import KIND_DEPLOYMENT, KIND_FIT
from eldr_operator.kube.cache import Cache
from eldr_operator.metrics import FIT_REASONS, Metrics
from eldr_operator.settings import Settings
from eldr_operator.startup import assembled

CONDITIONS = Path(__file__).parents[3] / "docs" / "reference" / "conditions.md"


def resource(kind, name, version, **conditions):
    metadata = {"namespace": "ns", "name": name, "uid": f"{kind}-{name}", "resourceVersion": str(version)}
    told = [
        {"type": type_, "status": status, "reason": f"{type_}Why"} for type_, status in conditions.items()
    ]
    return {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}}, "status": {"conditions": told}}


def shown(metrics):
    """Return the series by kind, name, type and status."""
    (family,) = (each for each in metrics.registry.collect() if each.name == "eldr_operator_condition")
    labels = ("kind", "name", "type", "status")
    return {tuple(one.labels[label] for label in labels): one.value for one in family.samples}


@pytest.fixture
def program():
    metrics = Metrics()
    made = assembled(None, None, None, Settings(lease_namespace="eldr-system"), metrics)
    return made, metrics


def test_each_condition_has_a_series_for_each_status(program):
    made, metrics = program
    made.lease.held.set()
    made.manager.changed(
        KIND_DEPLOYMENT, resource(KIND_DEPLOYMENT, "x", 1, Ready="False", Degraded="Unknown"), is_gone=False
    )
    made.manager.changed(KIND_FIT, resource(KIND_FIT, "f", 2, Succeeded="True"), is_gone=False)
    assert shown(metrics) == {
        (KIND_DEPLOYMENT, "x", "Ready", "true"): 0,
        (KIND_DEPLOYMENT, "x", "Ready", "false"): 1,
        (KIND_DEPLOYMENT, "x", "Ready", "unknown"): 0,
        (KIND_DEPLOYMENT, "x", "Degraded", "true"): 0,
        (KIND_DEPLOYMENT, "x", "Degraded", "false"): 0,
        (KIND_DEPLOYMENT, "x", "Degraded", "unknown"): 1,
        (KIND_FIT, "f", "Succeeded", "true"): 1,
        (KIND_FIT, "f", "Succeeded", "false"): 0,
        (KIND_FIT, "f", "Succeeded", "unknown"): 0,
    }
    page = generate_latest(metrics.registry).decode()
    assert (
        'eldr_operator_condition{kind="EldrDeployment",name="x",namespace="ns",reason="ReadyWhy",status="false",type="Ready"} 1.0'
        in page
    )


def test_series_change_with_the_condition_and_go_with_the_object(program):
    made, metrics = program
    made.lease.held.set()
    ready = (KIND_DEPLOYMENT, "x", "Ready", "true")
    for version, status in ((1, "False"), (2, "True")):
        live = resource(KIND_DEPLOYMENT, "x", version, Ready=status)
        made.manager.changed(KIND_DEPLOYMENT, live, is_gone=False)
        assert shown(metrics)[ready] == float(status == "True")
    gone = resource(KIND_DEPLOYMENT, "x", 3, Ready="True")
    made.manager.changed(KIND_DEPLOYMENT, gone, is_gone=True)
    assert shown(metrics) == {}


def test_an_operator_that_waits_tells_of_no_condition(program):
    made, metrics = program
    made.manager.changed(KIND_DEPLOYMENT, resource(KIND_DEPLOYMENT, "x", 1, Ready="True"), is_gone=False)
    assert shown(metrics) == {}
    made.lease.held.set()
    assert len(shown(metrics)) == 3


def test_a_resource_without_status_has_no_series(program):
    made, metrics = program
    made.lease.held.set()
    fresh = resource(KIND_DEPLOYMENT, "x", 1)
    del fresh["status"]
    made.manager.changed(KIND_DEPLOYMENT, fresh, is_gone=False)
    assert shown(metrics) == {}


def test_the_cache_may_change_while_it_is_read():
    cache = Cache()
    for name in "abc":
        cache.put(KIND_DEPLOYMENT, resource(KIND_DEPLOYMENT, name, 1))
    reading = cache._every(KIND_DEPLOYMENT)
    next(reading)
    cache.put(KIND_DEPLOYMENT, resource(KIND_DEPLOYMENT, "d", 1))
    elsewhere = resource(KIND_DEPLOYMENT, "e", 1)
    cache.put(KIND_DEPLOYMENT, {**elsewhere, "metadata": elsewhere["metadata"] | {"namespace": "z"}})
    assert len(list(reading)) == 2


def test_every_result_of_a_fit_is_counted_from_zero():
    text = CONDITIONS.read_text().partition("## EldrFit")[2].partition("| Blocked")[0]
    documented = re.findall(r"^\| \| (?:True|False) \| ([A-Za-z, ]+) \|", text, re.MULTILINE)
    reasons = {reason for cell in documented for reason in cell.split(", ")}
    assert {"Accepted", "ReportUnreadable"} <= reasons
    assert set(FIT_REASONS) == reasons
    found = {
        reason: Metrics().registry.get_sample_value("eldr_operator_fits_total", {"reason": reason})
        for reason in FIT_REASONS
    }
    assert set(found.values()) == {0.0}

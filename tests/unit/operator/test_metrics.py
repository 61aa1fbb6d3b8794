"""The operator's metrics: conditions of resources, for as long as the resources are there."""

import re
from pathlib import Path

from prometheus_client import generate_latest

from eldr.contract import KIND_DEPLOYMENT, KIND_FIT
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


class Program:
    """An operator that acts, or waits for another one."""

    def __init__(self):
        self.metrics = Metrics()
        self.made = assembled(None, None, None, Settings(lease_namespace="eldr-system"), self.metrics)

    def act(self):
        self.made.lease.held.set()
        return self

    def sees(self, live, kind=KIND_DEPLOYMENT, *, is_gone=False):
        self.made.manager.changed(kind, live, is_gone=is_gone)
        return shown(self.metrics)


def deployment(version=1, **conditions):
    return resource(KIND_DEPLOYMENT, "x", version, **conditions)


def test_each_condition_has_a_series_for_each_status():
    program = Program().act()
    program.sees(deployment(Ready="False", Degraded="Unknown"))
    found = program.sees(resource(KIND_FIT, "f", 2, Succeeded="True"), KIND_FIT)
    assert found == {
        (*which, status): status == told
        for *which, told in (
            (KIND_DEPLOYMENT, "x", "Ready", "false"),
            (KIND_DEPLOYMENT, "x", "Degraded", "unknown"),
            (KIND_FIT, "f", "Succeeded", "true"),
        )
        for status in ("true", "false", "unknown")
    }
    assert (
        'eldr_operator_condition{kind="EldrDeployment",name="x",namespace="ns",reason="ReadyWhy",status="false",type="Ready"} 1.0'
        in generate_latest(program.metrics.registry).decode()
    )


def test_series_change_with_the_condition_and_go_with_the_object():
    program = Program().act()
    for version, status in ((1, "False"), (2, "True")):
        found = program.sees(deployment(version, Ready=status))
        assert found[KIND_DEPLOYMENT, "x", "Ready", "true"] == (status == "True")
    assert program.sees(deployment(3, Ready="True"), is_gone=True) == {}


def test_an_operator_that_waits_tells_of_no_condition():
    program = Program()
    assert program.sees(deployment(Ready="True")) == {}
    assert len(shown(program.act().metrics)) == 3


def test_a_resource_without_status_has_no_series():
    fresh = deployment()
    del fresh["status"]
    assert Program().act().sees(fresh) == {}


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

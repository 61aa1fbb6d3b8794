"""An operator that has nothing to do writes nothing."""

from __future__ import annotations

import pytest

from eldr_operator.api import RESOURCES
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

READS = {"get", "list", "watch"}
KINDS = [kind for kind in RESOURCES if kind != "Event"]


def versions(world) -> dict[str, str]:
    return {
        f"{kind}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for kind in KINDS
        for each in world.kube.list(kind)
    }


class Watch:
    """What the operator has asked for in a namespace since this was made, from the audit log."""

    def __init__(self, operator, world) -> None:
        self._operator, self._namespace = operator, world.kube.namespace
        self._mark = operator.audit_size()

    def requests(self) -> list[dict]:
        entries = self._operator.requests(self._mark)
        return [entry for entry in entries if entry.get("objectRef", {}).get("namespace") == self._namespace]

    def passes(self) -> int:
        return sum(entry["requestURI"].endswith("/eldrdeployments/x") for entry in self.requests())

    def wait_for_passes(self, count: int) -> None:
        wait_for(lambda: self.passes() >= count, f"{count} passes", 90)


def settle(operator, world) -> None:
    """Wait until two passes in a row have written nothing."""

    def is_quiet() -> bool:
        before = versions(world)
        Watch(operator, world).wait_for_passes(3)
        return versions(world) == before

    wait_for(is_quiet, "a quiet operator", 90)


def test_idle_and_restarted_operator_writes_nothing(operator, world):
    world.up(refit={"schedule": "0 3 * * *"})
    world.fit("first", k=2)
    world.report("first")
    world.until_active("first")
    world.condition("CentroidsActive", reason="Active")
    settle(operator, world)
    before, watch = versions(world), Watch(operator, world)
    watch.wait_for_passes(5)
    assert [entry["requestURI"] for entry in watch.requests() if entry["verb"] not in READS] == []
    assert versions(world) == before

    assert operator.stop() == 0
    watch = Watch(operator, world)
    operator.start()
    watch.wait_for_passes(5)
    assert versions(world) == before
    assert "Role/x-router" in before
    applied = {entry["objectRef"]["resource"] for entry in watch.requests() if entry["verb"] == "patch"}
    assert "roles" in applied, "the audit log shows writes; a restart applies each child once"
    assert applied.isdisjoint({"eldrdeployments", "eldrfits"})


def test_metrics_tell_what_happened(operator, world):
    world.up()
    world.fit("first")
    world.report("first")
    world.until_active("first")
    labels = f'{{deployment="x",namespace="{world.kube.namespace}"}}'
    wait_for(lambda: f"eldr_operator_epoch{labels} 1.0" in operator.metrics(), "epoch", 60, operator.metrics)
    wait_for(
        lambda: f"eldr_operator_routers_acked{labels} 1.0" in operator.metrics(), "acks", 60, operator.metrics
    )
    page = operator.metrics()
    for line in (
        'eldr_operator_fits_total{reason="Accepted"}',
        'eldr_operator_writes_total{kind="Job",verb="create"}',
    ):
        assert line in page
    world.kube.delete("EldrDeployment", "x")
    wait_for(lambda: labels not in operator.metrics(), "series gone with the deployment", 60)

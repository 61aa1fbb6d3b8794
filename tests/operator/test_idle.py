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


def passes(operator) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in operator.metrics().splitlines()
        if line.startswith("eldr_operator_reconcile_total{")
    )


def settle(operator, world) -> None:
    """Wait until several passes in a row have written nothing."""

    def quiet() -> bool:
        before, start = versions(world), passes(operator)
        wait_for(lambda: passes(operator) >= start + 2, "two passes", 60)
        return versions(world) == before

    wait_for(quiet, "a quiet operator", 90)


def test_idle_and_restarted_operator_writes_nothing(operator, world):
    world.up(refit={"schedule": "0 3 * * *"})
    world.fit("first", k=2)
    world.report("first")
    world.until_active("first")
    world.condition("CentroidsActive", reason="Active")
    settle(operator, world)
    before, start, mark = versions(world), passes(operator), operator.audit_size()
    wait_for(lambda: passes(operator) >= start + 4, "four more passes", 90)
    seen = [
        entry
        for entry in operator.requests(mark)
        if entry["objectRef"].get("namespace") == world.kube.namespace
    ]
    assert len(seen) > 20, "the audit log shows the operator's reads"
    assert [entry["requestURI"] for entry in seen if entry["verb"] not in READS] == []

    assert operator.stop() == 0
    operator.start()
    start = passes(operator)
    wait_for(lambda: passes(operator) >= start + 4, "passes after the restart", 90)
    assert versions(world) == before

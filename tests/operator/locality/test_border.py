"""Routers, ConfigMaps and EldrFits that hold nonsense, on a real API server: one bad value loses only itself."""

from __future__ import annotations

import json

import pytest

from eldr import contract
from tests.operator.locality.test_drift import EVEN, baseline
from tests.operator.routers import PretendRouter
from tests.operator.world import FIT, World
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


class Liar(PretendRouter):
    """Tells ``lies`` in place of the truth."""

    lies: dict[str, object]

    def answer_state(self):
        return {**super().answer_state(), **getattr(self, "lies", {})}


@pytest.fixture
def world(operator, kube):
    made = World(kube)
    made.router_kind = Liar
    yield made
    made.close()


@pytest.fixture
def logged(operator):
    """Return what the operator has logged since the test began."""
    start = operator.log.stat().st_size

    def since():
        with operator.log.open("rb") as log:
            log.seek(start)
            return log.read().decode()

    return since


def goes_on(world, tau):
    """Wait until a change of the spec has been taken up."""
    world.patch(router={"tau": tau})
    world.until_current()


def told_once(logged, what):
    """Check that the operator has logged something once, and nothing went wrong with it."""
    text = logged()
    assert "Traceback" not in text
    assert text.count(what) == 1


def test_a_router_that_lies_is_taken_at_its_word_in_nothing_but_the_rest(world, logged):
    world.up()
    (router,) = world.routers.values()
    router.lies = {
        "samples": float("inf"),
        "saving": {"share": 10**400, "error": 0, "steps": 500},
        "step_time": {"expert_share": float("nan"), "expert_share_error": 0.0},
        "counters": {contract.signature_counter("exact"): float("inf")},
        "policy": "x" * 100_000,
        "problem": "a\0b\ud800c",
    }
    condition = world.condition("CentroidsActive", reason="RouterComplaint")
    assert "a?b?c" in condition["message"]
    goes_on(world, "0.21")
    assert "policyInEffect" not in world.status["router"]
    assert not world.status.get("locality")
    goes_on(world, "0.22")
    told_once(logged, "tells counters, policy, samples, saving, step_time that cannot be")


def test_a_damaged_memory_loses_what_is_damaged(world, logged):
    world.up(refit={"minSamples": 10})
    world.serve("first")
    name = contract.routing_name("x")
    memory = json.loads(world.kube.get("ConfigMap", name)["data"]["memory.json"])
    entry = memory["history"][0]
    memory |= {
        "history": [entry, {}, entry | {"epoch": "x"}, entry | {"fit": None}],
        "baselines": {digest: [1] for digest in memory["baselines"]},
        "refit": {"nextScheduleTime": "soon", "lastFit": "first"},
        "drift": memory["drift"] | {"seen": "2026-01-01T00:00:00", "fits": {"number": 10**400}},
        "activatedAt": "0001-01-01T00:00:00+12:00",
    }
    world.kube.merge("ConfigMap", name, {"data": {"memory.json": json.dumps(memory)}})
    goes_on(world, "0.21")
    assert world.status["history"] == [entry]
    assert world.active() == "first"
    goes_on(world, "0.22")
    told_once(logged, "is damaged: what cannot be read of")


def test_a_routing_table_that_somebody_edits_is_put_back(world):
    world.up(refit={"minSamples": 10})
    world.serve("first")
    name = contract.routing_name("x")

    def routing() -> dict:
        return json.loads(world.kube.get("ConfigMap", name)["data"][contract.ROUTING_KEY])

    before = routing()
    edited = json.dumps(before | {"epoch": 99, "active": None})
    world.kube.merge("ConfigMap", name, {"data": {contract.ROUTING_KEY: edited}})
    wait_for(lambda: routing() == before, "the table as it was")
    assert world.active() == "first"
    assert [entry["epoch"] for entry in world.status["history"]] == [before["epoch"]]


def test_an_eldrfit_that_cannot_be_read_or_does_not_go_holds_nobody_up(world, logged):
    world.up(refit={"minSamples": 10})
    world.fit("odd", since="0000-01-01T00:00:00Z")
    condition = world.until_fit("odd", status="False", reason="InvalidField")
    assert "spec.since" in condition["message"]
    goes_on(world, "0.21")
    finalizers = ["example.com/x"]
    world.kube.create(FIT, {"name": "held", "finalizers": finalizers}, spec={"deploymentRef": {"name": "x"}})
    wait_for(lambda: world.kube.find("Job", "held"), "its Job")
    world.kube.delete(FIT, "held")
    world.until_fit("held", status="False", reason="Deleted")
    next(iter(world.routers.values())).samples = 100
    world.until(lambda: world.kube.find(FIT, "x-bootstrap"), "a fit")
    world.kube.merge(FIT, "held", {"metadata": {"finalizers": []}})
    goes_on(world, "0.22")
    told_once(logged, "odd is left out")


def test_a_baseline_that_nobody_reads_stops_nothing(world, logged):
    """Far more than a ConfigMap takes: what is not read of it is not kept, and what cannot be read is told of."""
    world.up(refit={"minSamples": 10})
    world.serve("first", baseline=baseline(EVEN) | {"notes": [0] * 250_000})
    world.serve("damaged", baseline={"clusters": [0] * 250_000, "requests": 0})
    message = world.kube.condition(FIT, "damaged", "Succeeded")["message"]
    assert "drift is not reported while its set is active: baseline.similarity" in message
    detected = world.condition("DriftDetected", status="Unknown", reason="NoBaseline")
    assert "its EldrFit says" in detected["message"]
    goes_on(world, "0.21")
    kept = world.kube.get("ConfigMap", contract.routing_name("x"))["data"]["memory.json"]
    assert len(kept) < 5000
    assert "notes" not in kept
    assert "Traceback" not in logged()

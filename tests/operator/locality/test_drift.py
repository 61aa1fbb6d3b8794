"""Traffic drifts, sets break their promise or harm: what the operator does about it on a real API server."""

from __future__ import annotations

import json
import re

import pytest

from eldr import contract
from tests.operator.real_fits import detected
from tests.operator.world import FIT, KIND
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

EVEN = ((0.95, 0, 30), (0.9, 0, 20), (0.95, 1, 30), (0.9, 1, 20))
OTHER = ((0.6, 0, 80), (0.5, 1, 20))
DRIFT = {"windowRequests": 200, "windowSeconds": 1, "consecutiveWindows": 2, "coolDownMinutes": 0}


def baseline(kinds, saving=0.1, requests=4):
    """What a fit stores of traffic of these kinds."""
    found = {
        "similarity": [0] * contract.SIMILARITY_BINS,
        "clusters": [0, 0],
        "requests": requests * sum(n for *_, n in kinds),
        "saving": saving,
        "saving_low": saving - 0.02,
        "saving_high": saving + 0.02,
    }
    for similarity, slot, n in kinds:
        found["similarity"][int(similarity * contract.SIMILARITY_BINS)] += requests * n
        found["clusters"][slot] += requests * n
    return found


def up(world, *, policy="MarginalUnion", drift=DRIFT):
    """Serve a set that was fitted for even traffic, and let even traffic come."""
    world.up(
        refit={"minSamples": 10, "drift": drift}, router={"policy": policy}, signatures={"samplePercent": 100}
    )
    world.serve("first", baseline=baseline(EVEN))
    world.router.samples = 5000
    world.router.kinds = EVEN
    world.condition("DriftDetected", seconds=120, status="False", reason="Quiet")


def remembered(world):
    """What the operator knows of drift."""
    data = world.kube.get("ConfigMap", contract.routing_name("x"))["data"]
    return json.loads(data["memory.json"])["drift"]


def shown(operator, world):
    """Return the drift score that the operator's metrics show, as the status writes it."""
    labels = f'{{deployment="x",namespace="{world.kube.namespace}"}}'
    (value,) = re.findall(rf"^eldr_operator_drift_score{labels} (\S+)$", operator.metrics(), re.MULTILINE)
    return f"{float(value):.2f}"


def test_a_changed_mix_is_found_fitted_and_over(operator, world):
    up(world)
    assert world.status["locality"]["predictedSavingPercent"] == "10.0"
    before = world.kube.get(FIT, "first")["status"]["finishedAt"]
    world.router.kinds = OTHER
    detected(world, status="True", reason="Fitting")
    fit = wait_for(lambda: world.kube.find(FIT, "x-drift-1"), "the fit")
    assert fit["spec"]["trigger"] == "Drift"
    assert before < fit["spec"]["since"] <= fit["metadata"]["creationTimestamp"]
    assert before <= fit["spec"]["before"] < fit["spec"]["since"]
    assert "changedSince" in world.status["locality"]
    wait_for(lambda: shown(operator, world) == world.status["locality"]["driftScore"], "the score")
    assert float(shown(operator, world)) >= 1
    wait_for(lambda: world.kube.find("Job", "x-drift-1"), "its Job")
    args = world.kube.get("Job", "x-drift-1")["spec"]["template"]["spec"]["containers"][0]["args"]
    times = {f"--{key}={fit['spec'][key]}" for key in ("since", "before")}
    assert times | {"--min-samples=8"} <= set(args)
    world.report("x-drift-1", baseline=baseline(OTHER))
    world.until_active("x-drift-1")
    detected(world, status="False", reason="Quiet")
    world.until_told("DriftDetected", "DriftOver")
    assert [fit["metadata"]["name"] for fit in world.kube.list(FIT)] == ["first", "x-drift-1"]


def lose_memory(world):
    """Delete what the operator knows; a pass that has read it before writes it anew, and nothing is lost: return whether it is."""
    epoch = world.routing["epoch"]
    table = world.remade_routing()
    if table["active"] is not None and table["epoch"] == epoch:
        return False
    # entries are not counted: one of a set that serves no more may follow at once
    world.until(lambda: world.status["history"][-1]["epoch"] > epoch, "a set again")
    return True


@pytest.mark.costly
def test_a_set_that_does_not_keep_its_promise_is_rolled_back(world):
    up(world)
    world.serve("worse", baseline=baseline(EVEN, saving=0.15))
    world.router.saving = {"share": 0.01, "error": 0.005, "steps": 5000, "batch": 8.0}
    world.until(lambda: world.active() == "first", "the set before", 240)
    assert world.status["history"][-1]["reason"] == "RolledBack"
    assert world.routing["active"]["fit"] == "first"
    assert world.status["centroids"]["previous"]["fit"] == "worse"
    wait_for(lambda: len(world.status["history"]) == 3, "one roll-back")
    assert world.kube.condition(FIT, "worse", "Blocked")["reason"] == "RolledBack"
    assert world.kube.condition(FIT, "worse", "Succeeded")["reason"] == "Accepted"
    assert world.kube.condition(FIT, "first", "Blocked") == {}
    world.router.saving = None
    world.until(lambda: lose_memory(world), "a set again", 240)
    assert world.status["history"][-1]["fit"] == "first", (
        "though the other is newer, and its roll-back forgotten"
    )
    wait_for(lambda: "sha256:" + b"worse".hex().ljust(64, "0") in remembered(world)["blocked"], "blocked")


@pytest.mark.costly
def test_a_set_that_harms_is_taken_out_of_service_and_comes_back_with_its_traffic(world):
    up(world, policy="ELDR")
    world.router.kinds = OTHER
    detected(world, status="True")
    about = {"active_harms": True, "active_digest": world.routing["active"]["digest"]}
    world.report("x-drift-1", verdict="Rejected", reason="NotBetter", **about)
    condition = world.condition("CentroidsActive", seconds=120, status="False", reason="Protective")
    assert "JSQ is in effect" in condition["message"]
    assert world.routing["policy"] == "JSQ"
    assert world.active() == "first", "it stays loaded, so that one can tell when its traffic returns"
    assert world.kube.get(FIT, "x-drift-1")["status"]["activeSetRegresses"] is True
    world.kube.until_condition(FIT, "first", "Regresses", status="True")
    world.until(lambda: lose_memory(world), "a set again", 240)
    wait_for(lambda: world.routing["policy"] == "JSQ", "that it harms is not forgotten")
    world.router.kinds = EVEN
    world.until(lambda: world.routing["policy"] == "ELDR", "the set in service again", 120)
    world.condition("CentroidsActive", status="True", reason="Active")
    world.until_told("Protective", "CentroidsServeAgain")
    assert [(entry["fit"], entry["epoch"], entry["reason"]) for entry in world.status["history"]] == [
        ("first", 1, "Accepted"),
        ("first", 1, "Protective"),
        ("first", 3, "Accepted"),
        ("first", 3, "Protective"),
        ("first", 3, "ServesAgain"),
    ]
    wait_for(lambda: world.router.told[-1] == (3, "ELDR"), "it to be seen")
    served = [policy for epoch, policy in world.router.told if epoch == 3]
    assert served == ["JSQ", "ELDR"], "known to harm, it did not serve for a moment when it was active again"
    world.kube.until_condition(FIT, "first", "Regresses", status="False")


def test_reports_are_believed_of_the_set_that_they_name_and_of_no_other(world):
    up(world, policy="ELDR", drift=DRIFT | {"coolDownMinutes": 60})
    about = {"verdict": "Rejected", "reason": "NotBetter", "active_digest": world.routing["active"]["digest"]}
    world.fit("other")
    world.report("other", active_harms=True, **about | {"active_digest": "sha256:other"})
    world.until_fit("other", status="False", reason="Rejected")
    world.fit("harms")
    wait_for(lambda: world.kube.find("Job", "harms"), "a pass that has seen the other's result")
    assert world.routing["policy"] == "ELDR"
    world.report("harms", active_harms=True, **about)
    world.until(lambda: world.routing["policy"] == "JSQ", "out of service")
    world.until(lambda: len(world.status["history"]) == 2, "since when")
    world.until_after(world.status["history"][-1]["time"])
    world.report("x-drift-1", active_harms=False, **about)
    world.until(lambda: world.routing["policy"] == "ELDR", "in service again")
    assert world.active() == "first"
    world.until(lambda: len(world.status["history"]) == 3, "all of it told")
    assert [entry["reason"] for entry in world.status["history"]] == ["Accepted", "Protective", "ServesAgain"]


@pytest.mark.costly
def test_a_killed_operator_goes_on_where_it_was(operator, world):
    """At each step between detection and activation: the same end, no second fit, no half-active set."""
    up(world)
    world.router.kinds = OTHER

    def after(what, condition):
        world.until(condition, what, 120)
        operator.kill()
        operator.start()

    after("detection", lambda: world.kube.condition(KIND, "x", "DriftDetected").get("status") == "True")
    after("the fit", lambda: world.kube.find(FIT, "x-drift-1"))
    after("its Job", lambda: world.kube.find("Job", "x-drift-1"))
    world.router.is_holding = True
    world.report("x-drift-1", baseline=baseline(OTHER))
    after("the report", lambda: world.kube.condition(FIT, "x-drift-1", "Succeeded").get("status") == "True")
    after("staging", lambda: world.routing["staged"])
    world.router.is_holding = False
    after("activation", lambda: world.routing["epoch"] == 2)
    world.until_active("x-drift-1")
    detected(world, status="False", reason="Quiet")
    assert [fit["metadata"]["name"] for fit in world.kube.list(FIT)] == ["first", "x-drift-1"]
    assert [(entry["epoch"], entry["fit"]) for entry in world.status["history"]] == [
        (1, "first"),
        (2, "x-drift-1"),
    ]
    assert world.routing["staged"] is None

"""`eldr status` and kubectl, on a real API server: traffic drifts twice, and who comes later can read what happened."""

from __future__ import annotations

import json

import pytest

from eldr import contract
from tests.operator.locality.test_drift import EVEN, OTHER, baseline, detected, up
from tests.operator.world import FIT
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


def shown(world, *arguments):
    done = world.eldr("status", world.name, *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def windows(world):
    """Return how many calm windows the operator has seen since the activation."""
    data = world.kube.get("ConfigMap", contract.routing_name("x"))["data"]
    return json.loads(data["memory.json"])["drift"].get("known", {}).get("windows", 0)


def follow(world, kinds, number):
    """Let traffic change, and the fit that follows become active."""
    world.router.kinds = kinds
    detected(world, status="True", reason="Fitting")
    name = f"x-drift-{number}"
    wait_for(lambda: world.kube.find(FIT, name), "the fit")
    if number == 1:
        assert "DriftDetected True" in shown(world), "a problem as long as it lasts"
    world.report(name, baseline=baseline(kinds), reduction=0.08 + number / 100)
    world.until_active(name)
    detected(world, status="False", reason="Quiet")
    wait_for(lambda: windows(world) >= 5, "windows with the new set, so that a change stands out")


@pytest.mark.costly
def test_a_night_on_which_traffic_drifted_twice(world):
    up(world)
    follow(world, OTHER, 1)
    follow(world, EVEN, 2)
    day = world.status["locality"]["driftDay"]
    scores = day["scores"].split()
    assert 1 <= len(scores) <= 2, "a few minutes are one half hour, or two"
    assert max(map(float, scores)) >= 1.0

    told = json.loads(shown(world, "--json"))
    assert [(fit["name"], fit["trigger"], fit["reduction_percent"]) for fit in told["fits"]] == [
        ("x-drift-2", "Drift", 10.0),
        ("x-drift-1", "Drift", 9.0),
        ("first", "Manual", 9.1),
    ]
    assert told["fits"][0]["looks_back_to"] is not None
    assert told["fits"][0]["served"][0]["until"] is None
    assert [problem["type"] for problem in told["problems"]] == []

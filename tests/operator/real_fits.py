"""A deployment whose sets are of real fits of captured activations; what its tests ask again and again."""

from __future__ import annotations

from eldr.sim import traces
from tests.operator.world import FIT
from tests.support.processes import wait_for

DRIFT = {"windowRequests": 200, "windowSeconds": 1, "consecutiveWindows": 2, "coolDownMinutes": 60}
KINDS, OTHERS = ("fr", "ru", "manual", "legal"), ("en", "zh", "python", "changelog")
CAPTURED = traces.load()
USUAL, OTHER = CAPTURED.split(KINDS)[0], CAPTURED.split(OTHERS)[0]


def detected(world, **wanted):
    return world.condition("DriftDetected", seconds=120, **wanted)


def verdict(world, name):
    wait_for(lambda: world.kube.condition(FIT, name, "Succeeded").get("status") != "Unknown", name)
    return world.kube.condition(FIT, name, "Succeeded")


def history(world):
    return [(entry["fit"], entry["reason"]) for entry in world.status["history"]]

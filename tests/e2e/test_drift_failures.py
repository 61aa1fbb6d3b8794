"""Kill -9 of routers and of a fit at each step between the detection of drift and the activation of its set: real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from eldr import contract
from eldr.sim import traces
from eldr_demo.arrivals import ClosedLoop
from eldr_demo.load import Workload
from eldr_demo.simulated import replay
from tests.e2e.conftest import IN_FLIGHT, NAME, SLOW, System, failed, kill, process, traffic
from tests.support.kube import Kube
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(900)]
ENGINE_SPEED = SLOW

FIT = f"{NAME}-drift-1"
OTHERS = ("manual", "legal", "changelog")
"""Of these the first set makes much, so it is replaced beyond doubt; with fewer requests chance would have its say."""
CALM_REQUESTS = 1200
"""After the activation: each window makes a change stand out more."""
REFIT = {
    "minSamples": 800,
    "drift": {"windowRequests": 150, "windowSeconds": 5, "consecutiveWindows": 2, "coolDownMinutes": 60},
}


def routing(kube: Kube) -> dict[str, Any]:
    return json.loads(kube.get("ConfigMap", contract.routing_name(NAME))["data"][contract.ROUTING_KEY])


def detected(kube: Kube, status: str) -> bool:
    return kube.condition(contract.KIND_DEPLOYMENT, NAME, "DriftDetected").get("status") == status


def is_active(kube: Kube, fit: str) -> bool:
    return (routing(kube)["active"] or {}).get("fit") == fit


def is_staged(kube: Kube) -> bool:
    """Whether the set is staged, or active: it may last less than a look."""
    found = kube.condition(contract.KIND_FIT, FIT, "Succeeded")
    assert found.get("status") != "False", found
    return (routing(kube)["staged"] or {}).get("fit") == FIT or is_active(kube, FIT)


def running(addresses: Sequence[str]) -> list[str]:
    return [address for address in addresses if process(address, "router")]


async def test_killed_routers_and_a_killed_fit_leave_the_same_end(system: System, kube: Kube):
    kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": {"refit": REFIT}})
    addresses = system.addresses(contract.ROLE_PREFILL)

    def status() -> Any:
        return kube.get(contract.KIND_DEPLOYMENT, NAME)["status"]

    async def until(condition: Callable[[], object], what: str, seconds: float = 240.0) -> None:
        await asyncio.to_thread(wait_for, condition, what, seconds, status, 0.05)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("detection", lambda: detected(kube, "True")),
        ("the fit", lambda: kube.find(contract.KIND_FIT, FIT)),
        # a pod runs before its program does
        ("its Job at work", lambda: process(f"--fit={FIT}", "fit")),
        ("staging", lambda: is_staged(kube)),
        ("activation", lambda: is_active(kube, FIT)),
    ]
    async with traffic(system, ClosedLoop(IN_FLIGHT), logged=True) as load:
        await until(lambda: is_active(kube, f"{NAME}-bootstrap"), "the first set")
        await until(lambda: detected(kube, "False"), "quiet")
        so_far = len(load.outcomes)
        await until(lambda: len(load.outcomes) > so_far + CALM_REQUESTS, "what is usual to be known well")
        load.switch(Workload("drifting", replay(traces.load().split(OTHERS)[0]), logged=True))
        for number, (what, condition) in enumerate(steps):
            await until(condition, what)
            if what == "its Job at work":
                await asyncio.to_thread(kill, f"--fit={FIT}", "fit")
            # one that was killed may wait for its restart, longer each time: then it is another's turn
            turn = addresses[number % len(addresses) :] + addresses[: number % len(addresses)]
            await until(lambda: running(turn), "a router to kill")  # noqa: B023 - awaited at once
            await asyncio.to_thread(kill, running(turn)[0], "router")
        await until(system.ready, "EldrDeployment Ready again")
        await until(lambda: detected(kube, "False"), "quiet again")
    assert [fit["metadata"]["name"] for fit in kube.list(contract.KIND_FIT)] == [f"{NAME}-bootstrap", FIT]
    assert [(entry["epoch"], entry["fit"]) for entry in status()["history"]] == [
        (1, f"{NAME}-bootstrap"),
        (2, FIT),
    ]
    assert kube.get("Job", FIT)["status"]["failed"] == 1, "its pod was killed once"
    table = routing(kube)
    assert (table["epoch"], table["staged"], table["active"]["fit"]) == (2, None, FIT)
    await until(
        lambda: (
            [(s["epoch"], s["active"]["digest"]) for s in system.states()]
            == [(2, table["active"]["digest"])] * len(addresses)
        ),
        "the same set on every router",
        60,
    )
    assert not any("wrong tokens" in error for error in failed(load)), failed(load)
    wait_for(system.idle, "in-flight counts back to zero", 60)

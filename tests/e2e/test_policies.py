"""Policies that are switched under traffic, on the real control plane."""

from __future__ import annotations

import asyncio

import pytest

from eldr import contract
from eldr_demo.arrivals import Poisson
from tests.e2e.conftest import NAME, System, failed, kill, traffic
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


def patch(system: System, policy: str) -> None:
    system.cluster.kubectl(
        "patch", "eldr", NAME, "--type=merge", "-p", f'{{"spec":{{"router":{{"policy":"{policy}"}}}}}}'
    )
    wait_for(
        lambda: system.get("eldr")["status"]["router"].get("policyInEffect") == policy,
        f"policy {policy} in effect",
    )


async def test_marginal_union_learns_the_step_time_and_survives_a_killed_engine(system: System):
    """Routers tell each other of their experts, learn what a step costs, tell the user, and forget all in the end."""
    routers = system.routers()
    async with traffic(system, Poisson(15.0), logged=False) as load:
        await asyncio.to_thread(patch, system, "MarginalUnion")

        def told() -> bool:
            states = [state["locality"] for state in system.states()]
            return len(states) == len(routers) and all(s and s["tables"] == len(routers) - 1 for s in states)

        await asyncio.to_thread(wait_for, told, "routers to know each other's experts")

        def learned() -> bool:
            return {"expertSharePercent", "stepTime"} <= (
                system.get("eldr")["status"].get("locality") or {}
            ).keys()

        await asyncio.to_thread(
            wait_for,
            learned,
            "status.locality",
            120,
            lambda: [state["step_time"] for state in system.states()],
        )
        assert failed(load) == []
        victim = system.addresses(contract.ROLE_DECODE)[0]
        kill(victim, "decode")
        after = len(load.outcomes)
        while len(load.outcomes) < after + 60:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(wait_for, system.ready, "EldrDeployment Ready again", 120.0)
    errors = failed(load)
    assert all(error.startswith("error event") for error in errors), errors
    locality = system.get("eldr")["status"]["locality"]
    share = locality["expertSharePercent"]
    # the simulator's step-time model at some 10 requests and 30 of 64 experts: 8 + 10 + 0 ms
    assert 25 <= share <= 75
    assert float(locality["stepTime"]["fixedMilliseconds"]) > 0
    assert float(locality["stepTime"]["microsecondsPerExpert"]) > 0
    assert locality["stepTime"]["windows"] >= 1
    wait_for(system.idle, "in-flight counts back to zero")

    def forgotten() -> bool:
        return all(not any(state["locality"]["active_experts"].values()) for state in system.states())

    wait_for(forgotten, "no experts expected where nothing runs")
    patch(system, "JSQ")
    assert all(state["locality"] is None for state in system.states())

"""What each policy would bring on a running deployment's own traffic."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

import pytest

from eldr_demo.arrivals import Poisson
from tests.e2e.conftest import NAME, System, failed, traffic
from tests.support.processes import ELDR, wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]
RATE = 12.0
"""Requests per second."""


def simulate(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ELDR), "simulate", *arguments, "--seconds", "20", "--seeds", "2", "--json", "-"]
    env = {**os.environ, "KUBECONFIG": str(system.cluster.kubeconfig)}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def step_times(system: System) -> list[dict[str, float] | None]:
    return [state["step_time"] for state in system.states()]


@pytest.mark.costly
async def test_a_running_deployments_logs_answer(system: System):
    def logged() -> int:
        return sum(state["samples"] for state in system.states())

    before = logged()
    async with traffic(system, Poisson(RATE), logged=True) as load:
        await asyncio.to_thread(
            wait_for,
            lambda: len(load.outcomes) >= 250 and all(step_times(system)),
            "a log and a step-time model",
            120,
            every=1.0,
        )
    assert failed(load) == []
    await asyncio.to_thread(
        wait_for, lambda: logged() >= before + len(load.outcomes), "records to be written", 30
    )
    done = await asyncio.to_thread(simulate, system, "--from-cluster", NAME, "--last-minutes", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert f"Deployment {NAME}: 3 decode engines, policy " in report["requests"]
    assert report["engines"] == 3
    sent = [outcome.started for outcome in load.outcomes]
    # a machine that stands still for a moment sends fewer than asked for; records around that tell of either rate
    kept = len(sent) / (max(sent) - min(sent))
    assert 0.75 * kept <= report["rate"] <= 1.25 * max(kept, RATE)
    assert not any("not learned" in note for note in report["notes"])
    assert report["step_time"]["per_expert"] == pytest.approx(step_times(system)[0]["per_expert"], rel=0.3)
    done = await asyncio.to_thread(simulate, system, "--from-cluster", "none", "--namespace", "default")
    assert done.returncode == 1
    assert "NotFound: there is no EldrDeployment none in namespace default" in done.stderr


def test_a_doctor_finds_nothing_of_a_deployment_that_serves(system: System):
    """With real routers, real engines and the operator's own policies and Secrets."""
    done = system.doctor()
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert [one["check"] for one in told["checks"] if one["skipped"]] == []
    assert done.returncode == 0

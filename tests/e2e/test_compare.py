"""`eldr compare` on the demo's pool: it finds the demo's effect, and nothing where both policies are the same."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from eldr_demo.arrivals import ClosedLoop
from eldr_demo.simulated import SimulatedEngines
from tests.e2e.conftest import NAME, System, failed, traffic
from tests.support.processes import ELDR, wait_for

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(3600)]

DEMO = SimulatedEngines()
SPEC = DEMO.manifest()
WINDOW, CARRY_OVER, PAIRS = 25, 9, 6
"""Seconds, and how many. A request takes some 7 s."""
IN_FLIGHT = 64
"""As many as the demo has on average. Always as many: of random arrivals windows this short differ by a tenth in load."""


def compare(system: System, against: str) -> dict:
    hours = PAIRS * 2 * WINDOW / 3600 + 1e-6
    options = [f"--hours={hours}", f"--window={WINDOW}", f"--carry-over={CARRY_OVER}", "--seed=5", "--json"]
    env = {**os.environ, "KUBECONFIG": str(system.cluster.kubeconfig)}
    command = [str(ELDR), "compare", NAME, "--against", against, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    sys.stdout.write(done.stderr)  # pytest shows it for tests that failed
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def learn(system: System) -> None:
    """Have a set of the demo's traffic fitted and in service."""

    def fitted() -> bool:
        return bool(system.get("eldr")["status"].get("centroids", {}).get("active"))

    learned = DEMO.workload("fit", "first", logged=True)
    async with traffic(system, DEMO.arrivals(), logged=True, work=learned, tokens=DEMO.settings.tokens):
        await asyncio.to_thread(wait_for, fitted, "a set of the traffic in service", 240)


async def test_it_finds_the_demos_effect_and_nothing_against_itself(system: System):
    await learn(system)
    before, running = system.get("eldr"), system.uids()
    work = DEMO.workload("measure", "first", logged=False)
    arrivals = ClosedLoop(IN_FLIGHT)
    async with traffic(system, arrivals, logged=False, work=work, tokens=DEMO.settings.tokens) as load:
        found = await asyncio.to_thread(compare, system, "JSQ")
        same = await asyncio.to_thread(compare, system, "MarginalUnion")
    assert failed(load) == []
    sys.stdout.write(json.dumps([found, same], indent=1))

    assert found["pairs"] >= PAIRS - 1, found["left_out"]
    tpot = found["tpot"]["change"]
    # the demo's 8 % less: there requests arrive at the same times, so faster engines have fewer in flight, which saves again
    assert -9 < tpot["change_percent"] < -3
    assert tpot["high_percent"] < 0
    assert found["throughput"]["change"]["low_percent"] > 0, "as many at a time end sooner"

    nothing = same["tpot"]["change"]
    assert abs(nothing["change_percent"]) < abs(tpot["change_percent"]) / 2
    assert nothing["high_percent"] - nothing["low_percent"] < 10, "an interval that says something"
    assert nothing["low_percent"] < 1
    assert nothing["high_percent"] > -1

    after = system.get("eldr")
    assert after["spec"] == before["spec"]
    assert "eldr.dev/compare" not in (after["metadata"].get("annotations") or {})
    assert system.uids() == running, "no pod was replaced"

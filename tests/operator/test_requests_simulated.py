"""What a new deployment costs the API server: each request is counted, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.simulated.changes import SimulatedWorld
from tests.operator.simulated.process import SimulatedOperator, SimulatedRouter

MOST = 21


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    made = Simulation(seed=1)
    yield made
    made.close()


def test_a_new_deployment_costs_few_requests(simulation: Simulation):
    operator, asked = SimulatedOperator(simulation), Counter[str]()
    world = SimulatedWorld(SimulatedKube(simulation, "n"))
    world.router_kind = SimulatedRouter
    operator.start()
    simulation.pass_(5)
    operator.client.faults.append(lambda one: asked.update(["/".join(one[:2] + one[4:])]))
    world.deploy(decode={"replicas": 2})
    world.condition("PrefillReady", reason="PodsNotReady")
    until = simulation.loop.time() + 15
    simulation.until(lambda: simulation.loop.time() > until, "what follows")
    asked = Counter({what: count for what, count in asked.items() if "Lease" not in what})
    told = "\n".join(f"{count:3} {what}" for what, count in sorted(asked.items()))
    assert asked.total() <= MOST, f"{asked.total()} requests:\n{told}"

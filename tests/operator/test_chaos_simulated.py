"""Changes while things fail, in virtual time: what ``test_chaos.py`` does on a real control plane, in thousands of orders of events.

A sequence is drawn from its seed. A failure prints the seed and what was done: keep it in SEEDS. ``ELDR_CHAOS_SEEDS=2000`` runs so many
seeds instead of those of ``make test-all``.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.chaos import run
from tests.operator.simulated.changes import MoreChanges, SimulatedWorld
from tests.operator.simulated.client import ConstantClient
from tests.operator.simulated.faults import SimulatedFaults
from tests.operator.simulated.process import SimulatedOperator, SimulatedRouter

SEEDS = [
    *(1, 3, 8),
    *(pytest.param(seed, marks=pytest.mark.costly) for seed in (2, 4, 5, 6, 7, 9, 10, 11, 12)),
]
LONG_SEEDS = range(13, 13 + int(os.environ.get("ELDR_CHAOS_SEEDS", "188")))
STEPS = 8


def simulate(seed: int) -> None:
    random.seed(seed)  # the jitter of polls
    simulation = Simulation(seed)
    operators = [SimulatedOperator(simulation, lease=lease) for lease in ("a", "a", "b")]
    world, undisturbed = (SimulatedWorld(SimulatedKube(simulation, name)) for name in ("n", "n-undisturbed"))
    world.router_kind = undisturbed.router_kind = SimulatedRouter
    try:
        for operator in operators[:2]:
            operator.start()
        ConstantClient(simulation, operators, world)
        faults = SimulatedFaults(simulation, operators, world)
        run(seed, STEPS, faults.all(), world, undisturbed, MoreChanges)
    finally:
        simulation.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_in_any_order(seed, caplog):
    simulate(seed)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_in_any_order_of_many(seed, caplog):
    simulate(seed)
    assert not [record for record in caplog.records if record.exc_info], caplog.text

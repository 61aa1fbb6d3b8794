"""Changes while things fail: whatever fails, a deployment ends as one with the same spec of which nothing has failed.

A sequence is drawn from its seed. A failure prints the seed and what was done: keep it in SEEDS. ``ELDR_CHAOS_SEEDS=200`` runs so many
seeds instead of those of ``make test-all``.
"""

from __future__ import annotations

import os

import pytest

from tests.operator.chaos import run
from tests.operator.faults import Faults
from tests.operator.world import World
from tests.support.kube import Kube

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

SEEDS = (1, pytest.param(2, marks=pytest.mark.costly))
LONG_SEEDS = range(3, 3 + int(os.environ.get("ELDR_CHAOS_SEEDS", "18")))
STEPS, LONG_STEPS = 4, 8


@pytest.fixture
def undisturbed(installed, kube):
    """A world in another namespace."""
    name = f"{kube.namespace}-undisturbed"
    installed.create_namespace(name)
    with Kube(installed, name) as client:
        made = World(client)
        yield made
        made.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_on_the_way(seed, operator, world, undisturbed):
    run(seed, STEPS, Faults(operator, world).all(), world, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_deployment_ends_the_same_whatever_fails_on_a_long_way(seed, operator, world, undisturbed):
    run(seed, LONG_STEPS, Faults(operator, world).all(), world, undisturbed)

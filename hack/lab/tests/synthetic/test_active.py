"""Active experts of single steps."""

from dataclasses import replace

import numpy as np
import pytest

from eldr_lab.synthetic.active import active_experts


def test_steps_that_are_not_known_are_no_unions(population):
    with pytest.raises(ValueError, match="unions: single steps of these requests are not known"):
        active_experts(replace(population, steps=None), sampled=True)


def test_sampled_unions_are_those_of_each_members_own_step(population):
    union = active_experts(population, sampled=True)
    assert union.count(9) == 0.0
    union.join(4, 0)
    union.join(9, 2)
    n_steps = population.steps.shape[1]
    for step in range(2, 60):
        used = {
            *population.steps[4, step % n_steps].tolist(),
            *population.steps[9, (step - 2) % n_steps].tolist(),
        }
        assert union.count(step) == len(used) / 3
    union.leave(4, 0)
    assert union.count(60) == 4.0


def test_expected_is_the_mean_of_sampled(population):
    expected, sampled = (active_experts(population, sampled=kind) for kind in (False, True))
    for record in range(10):
        expected.join(record, record)
        sampled.join(record, record)
    mean = np.mean([sampled.count(step) for step in range(10, 200)])
    assert mean == pytest.approx(expected.count(0), rel=0.06)

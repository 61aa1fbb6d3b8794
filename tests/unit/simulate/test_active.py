"""Active experts of a batch."""

from dataclasses import replace

import numpy as np
import pytest

from eldr.simulate.active import ExpectedUnion, SampledUnion, active_experts


def test_expected_unions_equal_their_recomputation(population):
    rng = np.random.default_rng(0)
    union, members = ExpectedUnion(population.logs, 3), []
    for turn in range(600):
        if members and rng.random() < 0.48:
            union.leave(members.pop(int(rng.integers(len(members)))), 0)
        else:
            members.append(int(rng.integers(200)))
            union.join(members[-1], turn)
        survival = np.exp(population.logs[members].sum(axis=0, dtype=np.float64))
        assert union.count(turn).all == pytest.approx((96 - survival.sum()) / 3, abs=1e-9)


def test_steps_that_are_not_known_are_no_unions(population):
    with pytest.raises(ValueError, match="unions: single steps of these requests are not known"):
        active_experts(replace(population, steps=None), sampled=True)


def test_an_empty_batch_uses_nothing(population):
    union = ExpectedUnion(population.logs, 3)
    for record in (1, 2, 3):
        union.join(record, 0)
    for record in (2, 3, 1):
        union.leave(record, 0)
    assert union.count(0) == (0.0, 0.0)
    assert SampledUnion(population.steps, (3, 32)).count(9) == (0.0, 0.0)


def test_sampled_unions_are_those_of_each_members_own_step(population):
    union = SampledUnion(population.steps, (3, 32))
    union.join(4, 0)
    union.join(9, 2)
    n_steps = population.steps.shape[1]
    for step in range(2, 60):
        used = {
            *population.steps[4, step % n_steps].tolist(),
            *population.steps[9, (step - 2) % n_steps].tolist(),
        }
        assert union.count(step).all == len(used) / 3
    union.leave(4, 0)
    assert union.count(60) == (4.0, 4.0)


def test_expected_is_the_mean_of_sampled(population):
    expected, sampled = (active_experts(population, sampled=kind) for kind in (False, True))
    for record in range(10):
        expected.join(record, record)
        sampled.join(record, record)
    mean = np.mean([sampled.count(step).all for step in range(10, 200)])
    assert mean == pytest.approx(expected.count(0).all, rel=0.06)

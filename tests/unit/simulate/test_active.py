"""Active experts of a batch."""

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


@pytest.mark.parametrize("ranks", [2, 4, 32])
def test_the_fullest_rank_is_each_layers_own(population, ranks):
    sampled = active_experts(population, sampled=True, ranks=ranks)
    sampled.join(4, 0)
    sampled.join(9, 2)
    n_steps, held = population.steps.shape[1], 32 // ranks
    for step in range(2, 40):
        used = {
            *population.steps[4, step % n_steps].tolist(),
            *population.steps[9, (step - 2) % n_steps].tolist(),
        }
        on = np.zeros((3, ranks))
        for cell in used:
            on[cell // 32, cell % 32 // held] += 1
        assert sampled.count(step) == (len(used) / 3, pytest.approx(on.max(axis=1).mean()))
    expected = active_experts(population, sampled=False, ranks=ranks)
    expected.join(4, 0)
    active = 1 - np.exp(population.logs[4].astype(np.float64)).reshape(3, ranks, held)
    assert expected.count(0).fullest == pytest.approx(active.sum(axis=2).max(axis=1).mean())


def test_the_mean_of_the_largest_is_at_least_the_largest_mean(population):
    expected, sampled = (active_experts(population, sampled=kind, ranks=4) for kind in (False, True))
    for record in range(6):
        expected.join(record, record)
        sampled.join(record, record)
    mean = np.mean([sampled.count(step).fullest for step in range(10, 200)])
    assert expected.count(0).fullest < mean < 1.25 * expected.count(0).fullest
    assert expected.count(0).fullest > expected.count(0).all / 4


def test_experts_divide_evenly_among_ranks(population):
    for ranks in (0, 3, 64):
        with pytest.raises(ValueError, match="ranks: 32 experts per layer do not divide evenly"):
            active_experts(population, sampled=False, ranks=ranks)

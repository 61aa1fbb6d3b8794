"""Active experts of engines of several ranks."""

import numpy as np
import pytest

from eldr_lab.pool.active import on_ranks


@pytest.mark.parametrize("ranks", [2, 4, 32])
def test_the_fullest_rank_is_each_layers_own(population, ranks):
    sampled = on_ranks(population, sampled=True, ranks=ranks)
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
        count = sampled.count(step)
        assert (count.all, count.fullest) == (len(used) / 3, pytest.approx(on.max(axis=1).mean()))
    expected = on_ranks(population, sampled=False, ranks=ranks)
    expected.join(4, 0)
    active = 1 - np.exp(population.logs[4].astype(np.float64)).reshape(3, ranks, held)
    assert expected.count(0).fullest == pytest.approx(active.sum(axis=2).max(axis=1).mean())


def test_the_mean_of_the_largest_is_at_least_the_largest_mean(population):
    expected, sampled = (on_ranks(population, sampled=kind, ranks=4) for kind in (False, True))
    for record in range(6):
        expected.join(record, record)
        sampled.join(record, record)
    mean = np.mean([sampled.count(step).fullest for step in range(10, 200)])
    assert expected.count(0).fullest < mean < 1.25 * expected.count(0).fullest
    assert expected.count(0).fullest > expected.count(0).all / 4


def test_experts_divide_evenly_among_ranks(population):
    for ranks in (0, 3, 64):
        with pytest.raises(ValueError, match="ranks: 32 experts per layer do not divide evenly"):
            on_ranks(population, sampled=False, ranks=ranks)

"""Active experts of a batch."""

import numpy as np
import pytest

from eldr.simulate.active import ActiveExperts


def test_expected_experts_equal_their_recomputation(population):
    rng = np.random.default_rng(0)
    batch, members = ActiveExperts(population.logs, 3), []
    for turn in range(600):
        if members and rng.random() < 0.48:
            batch.leave(members.pop(int(rng.integers(len(members)))), 0)
        else:
            members.append(int(rng.integers(200)))
            batch.join(members[-1], turn)
        survival = np.exp(population.logs[members].sum(axis=0, dtype=np.float64))
        assert batch.count(turn) == pytest.approx((96 - survival.sum()) / 3, abs=1e-9)
    for member in members:
        batch.leave(member, 0)
    assert batch.count(0) == 0.0


def test_a_larger_batch_uses_more_experts(population):
    rng = np.random.default_rng(0)
    counts = [population.active(batch, rng, 64) for batch in (1, 4, 16)]
    assert 3 < counts[0] < 4 < counts[1] < counts[2] < 32

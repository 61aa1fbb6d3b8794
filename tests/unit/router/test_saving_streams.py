"""Where nothing is saved, nothing is measured to be saved or lost: whatever requests are like, and however few are logged."""

import numpy as np
import pytest

from eldr.sim import traces
from eldr_operator.drift.evidence import Z
from tests.support.random_pool import POOLS, Pool


@pytest.mark.costly
@pytest.mark.parametrize(
    "pool", [*POOLS[:-2], *(pytest.param(pool, marks=pytest.mark.long) for pool in POOLS[-2:])], ids=Pool.told
)
def test_random_batches_save_nothing(pool):
    known = traces.load()
    found = [
        one
        for seed in range(3)
        for one in pool.looks(known, 5400.0, np.random.default_rng([seed, 11]))
        if one is not None
    ]
    z = np.array([one.share / one.error for one in found])
    assert len(z) > 100
    assert abs(z).max() < Z, "a sound set would go out of service, or be rolled back"
    # looks that follow each other share requests, so that some dozens of them are independent
    assert 0.5 < np.sqrt((z**2).mean()) < 1.6, "the error is what it says"

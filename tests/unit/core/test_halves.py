"""Intervals from halves of the records: as often right as they say."""

import numpy as np
import pytest

from eldr.core.halves import GROUPS, balanced_halves, interval


@pytest.mark.parametrize("n", [8, 16, 17, 64, 667])
def test_halves_are_disjoint_and_of_about_the_same_size(n):
    splits = balanced_halves(n, np.random.default_rng(0))
    assert len(splits) == GROUPS - 1
    for one, other in splits:
        assert sorted([*one, *other]) == list(range(n))
        assert abs(len(one) - len(other)) <= max(n % 8, n % 32)
    # every two records are as often together as apart, up to the one time that they are in the same group
    side = np.array([np.isin(np.arange(n), one) for one, _ in splits])
    together = (side[:, :, None] == side[:, None, :]).sum(axis=0)
    assert set(np.unique(together)) <= {3, GROUPS - 1}


def test_neighbours_of_many_stay_together():
    for one, _ in balanced_halves(640, np.random.default_rng(0)):
        assert np.count_nonzero(np.diff(one) > 1) <= 16


def test_too_few_records_have_no_halves():
    with pytest.raises(ValueError, match="at least 8 records, got 7"):
        balanced_halves(7, np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "burst"), [(16, 1), (100, 1), (640, 1), (640, 20)])
def test_intervals_hold_the_truth_as_often_as_they_say(n, burst):
    """Of a ratio of means, as savings are; with ``burst`` requests that are alike in a row."""
    rng, held, runs = np.random.default_rng(1), 0, 1000
    for _ in range(runs):
        x = np.repeat(rng.lognormal(size=(2, n // burst)), burst, axis=1)

        def ratio(rows, x=x):
            return x[0, rows].mean() / x[1, rows].mean()

        halves = [(ratio(one), ratio(other)) for one, other in balanced_halves(n, rng)]
        _, low, high = interval(ratio(slice(None)), halves)
        held += low <= 1.0 <= high
    assert 0.87 <= held / runs <= 0.97

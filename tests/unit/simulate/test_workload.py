"""Arrivals."""

import numpy as np
import pytest

from eldr.simulate.workload import Window, make_workload, poisson

WINDOW = Window(10.0, 110.0, 20.0)


def test_arrivals_are_poisson_at_the_rate():
    workload = make_workload(np.arange(200) + 1, rate=30.0, window=WINDOW, seed=0, per_step=1.0)
    gaps = np.diff(workload.arrival)
    assert 1 / gaps.mean() == pytest.approx(30, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert 100 < workload.arrival[-1] < 130
    assert np.array_equal(workload.measured, (workload.arrival >= 10) & (workload.arrival < 110))
    assert np.array_equal(workload.tokens, workload.record + 1)


def test_no_request_comes_again_before_all_others():
    workload = make_workload(np.ones(50, dtype=int), rate=30.0, window=WINDOW, seed=0, per_step=1.0)
    for first in (0, 50, 100):
        assert sorted(workload.record[first : first + 50].tolist()) == list(range(50))


def test_arrivals_reach_the_end_however_close_they_come():
    class Close:
        """Gaps that are shorter than the rate promises, so that more have to be drawn."""

        def exponential(self, mean, n):
            return np.full(n, mean / 3)

    times = poisson(2.0, 100.0, Close())
    assert times[-1] == pytest.approx(100.0, abs=0.2)
    assert len(times) == pytest.approx(600, abs=1)

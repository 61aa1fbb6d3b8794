"""Arrivals."""

from dataclasses import replace

import numpy as np
import pytest

from eldr.simulate.workload import Window, make_workload, poisson

WINDOW = Window(10.0, 110.0, 20.0)


def make(population, **options):
    values = {"rate": 30.0, "window": WINDOW, "seed": 0, "output_tokens": 50}
    return make_workload(population, **values | options)


def test_arrivals_are_poisson_at_the_rate(population):
    workload = make(population)
    gaps = np.diff(workload.arrival)
    assert 1 / gaps.mean() == pytest.approx(30, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert 100 < workload.arrival[-1] < 130
    assert np.array_equal(workload.measured, (workload.arrival >= 10) & (workload.arrival < 110))
    assert (workload.tokens == 50).all()


def test_labels_come_by_share_and_no_request_again_before_all_others(population):
    workload = make(population)
    label = population.label[workload.record]
    share = np.bincount(label) / len(label)
    assert share == pytest.approx(population.shares, abs=0.03)
    of_first = workload.record[label == 0].tolist()
    assert len(set(of_first[:50])) == 50


def test_lengths_are_given_or_the_requests_own(population):
    with pytest.raises(ValueError, match="no lengths of their own"):
        make(population, output_tokens=None)
    own = replace(population, output_tokens=np.arange(200) + 1)
    workload = make(own, output_tokens=None)
    assert np.array_equal(workload.tokens, workload.record + 1)


def test_a_rate_is_positive(population):
    with pytest.raises(ValueError, match="more than 0"):
        make(population, rate=0.0)


def test_arrivals_reach_the_end_however_close_they_come():
    class Close:
        """Gaps that are shorter than the rate promises, so that more have to be drawn."""

        def exponential(self, mean, n):
            return np.full(n, mean / 3)

    times = poisson(2.0, 100.0, Close())
    assert times[-1] == pytest.approx(100.0, abs=0.2)
    assert len(times) == pytest.approx(600, abs=1)

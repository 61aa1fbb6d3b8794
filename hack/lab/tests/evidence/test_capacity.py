"""Requests per second within a time per token."""

import pytest

from eldr_lab.evidence.capacity import capacity

RATES = (20.0, 40.0, 60.0)


def test_capacity_interpolates_and_says_where_it_ends():
    times = (10.0, 20.0, 40.0)
    assert capacity(RATES, times, 30.0) == pytest.approx(50.0)
    assert capacity(RATES, times, 50.0) == pytest.approx(60.0)
    assert capacity(RATES, times, 5.0) == 0.0


def test_a_time_that_falls_again_is_kept_at_the_higher_rate():
    assert capacity(RATES, (10.0, 40.0, 30.0), 30.0) == 60.0

"""Throughput within an objective."""

import math

import pytest

from eldr.simulate.objective import Objective, capacity, parse_objective, served

RATES = (20.0, 40.0, 60.0)
ALL = (True, True, True)


def test_capacity_interpolates_and_says_where_it_ends():
    times = (10.0, 20.0, 40.0)
    assert capacity(RATES, times, 30.0) == pytest.approx(50.0)
    assert capacity(RATES, times, 50.0) == pytest.approx(60.0)
    assert capacity(RATES, times, 5.0) == 0.0


def test_a_time_that_falls_again_is_kept_at_the_higher_rate():
    assert capacity(RATES, (10.0, 40.0, 30.0), 30.0) == 60.0


def test_seeds_give_an_interval_and_ends_are_told():
    found = served(RATES, [(10.0, 20.0, 40.0), (10.0, 30.0, 50.0)], 30.0, [ALL, ALL])
    assert found.rate == pytest.approx(45.0)
    assert found.half_width == pytest.approx(12.706 * 5.0, rel=1e-3)
    assert (found.at_least, found.at_most) == (False, False)
    assert served(RATES, [(10.0, 20.0, 30.0)], 30.0, [ALL]).at_least
    none = served(RATES, [(31.0, 32.0, 33.0)], 30.0, [ALL])
    assert none.rate == 0.0
    assert none.at_most
    assert math.isnan(none.half_width)


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("P50=20", Objective("tpot_p50", 0.02)),
        ("p99=1.5", Objective("tpot_p99", 0.0015)),
        ("mean=3", Objective("tpot_mean", 0.003)),
    ],
)
def test_objectives_are_read(text, objective):
    assert parse_objective(text) == pytest.approx(objective)


@pytest.mark.parametrize(
    "text", ["P90=20", "20", "P99=", "P99=x", "P99=0", "P99=-1", "P99=nan", "P99=inf", ""]
)
def test_others_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_objective(text)


def test_a_rate_that_the_pool_cannot_keep_up_with_serves_nothing_more():
    flat = (10.0, 10.0, 10.0)
    assert served(RATES, [flat], 30.0, [(True, True, False)]).rate == 40.0, "nobody knows what lies between"
    assert served(RATES, [(10.0, 20.0, 40.0)], 30.0, [(True, True, False)]).rate == 40.0
    assert served(RATES, [flat], 30.0, [(False, False, False)]).rate == 0.0
    assert served(RATES, [flat], 30.0, [(True, False, True)]).rate == 60.0
    found = served(RATES, [flat, flat], 30.0, [(True, True, False), (True, True, False)])
    assert (found.rate, found.at_least, found.at_most) == (40.0, True, False)
    found = served(RATES, [(10.0, 35.0, 40.0)], 30.0, [(True, True, False)])
    assert found.rate == pytest.approx(36.0)
    assert not found.at_least, "the time per token is what ends it"
    assert served(RATES, [flat], 30.0, [(False, False, False)]).at_most

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from eldr.core.assignment import assign_balanced


def optimum(costs, capacity):
    wide = np.repeat(costs, capacity, axis=1)
    return wide[linear_sum_assignment(wide)].sum()


@st.composite
def problems(draw):
    n, k = draw(st.integers(1, 24)), draw(st.integers(1, 6))
    capacity = -(-n // k) + draw(st.integers(0, 3))
    values = draw(st.sampled_from([st.floats(-5, 5), st.integers(0, 2).map(float)]))
    return draw(arrays(np.float64, (n, k), elements=values)), capacity


@pytest.mark.slow
@given(problems(), st.none() | st.integers(0, 2**32 - 1))
def test_total_cost_is_that_of_the_hungarian_solver_from_any_start(problem, seed):
    (costs, capacity), start = problem, None
    n, k = costs.shape
    if seed is not None:
        rng = np.random.default_rng(seed)
        start = rng.permutation(np.repeat(np.arange(k), capacity))[:n]
    before = copy.deepcopy(start)
    labels = assign_balanced(costs, capacity, start)
    assert np.bincount(labels, minlength=k).max() <= capacity
    assert costs[np.arange(n), labels].sum() == pytest.approx(optimum(costs, capacity), abs=1e-6)
    np.testing.assert_equal(start, before)


@pytest.mark.parametrize("least", [5e-324, 1e-310, 1e-45, 1.2e-38, 1e-30])
def test_costs_may_differ_by_next_to_nothing(least):
    costs = np.zeros((12, 6))
    costs[0, 0] = least
    costs[3:, 1] = 2 * least
    rng = np.random.default_rng(0)
    start = rng.permutation(np.repeat(np.arange(6), 2))
    for one in (None, start):
        labels = assign_balanced(costs, 2, one)
        assert np.bincount(labels, minlength=6).max() <= 2
        assert costs[np.arange(12), labels].sum() <= 2 * 12 * least


@pytest.mark.slow
@given(problems(), st.sampled_from([1e-6, 1.0, 1e5]), st.floats(-1e6, 1e6))
def test_neither_the_unit_nor_an_offset_of_the_costs_matters(problem, unit, offset):
    costs, capacity = problem
    labels = assign_balanced(costs * unit + offset, capacity)
    got = costs[np.arange(len(costs)), labels].sum()
    assert got == pytest.approx(
        optimum(costs, capacity), abs=len(costs) * 1e-8 * max(1.0, abs(offset)) / unit
    )


def test_an_optimal_start_is_kept_among_equals():
    start = np.array([2, 0, 1, 2, 1, 0])
    labels = assign_balanced(np.ones((6, 3)), 2, start)
    np.testing.assert_array_equal(labels, start)


@pytest.mark.parametrize(
    ("costs", "capacity", "start", "reason"),
    [
        (np.zeros((3, 2)), 1, None, "2 clusters of 1 cannot hold 3 points; at least 2 is needed"),
        (np.zeros(3), 1, None, "costs: expected"),
        (np.array([[np.nan, 1.0]]), 1, None, "NaN"),
        (np.zeros((3, 2)), 2, np.array([0, 0, 0]), "holds more than 2"),
        (np.zeros((3, 2)), 2, np.array([0, 1]), "expected 3 clusters"),
    ],
)
def test_impossible_problems_are_refused(costs, capacity, start, reason):
    with pytest.raises(ValueError, match=reason):
        assign_balanced(costs, capacity, start)

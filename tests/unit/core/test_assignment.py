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


@given(problems())
def test_total_cost_is_that_of_the_hungarian_solver(problem):
    costs, capacity = problem
    labels = assign_balanced(costs, capacity)
    assert np.bincount(labels, minlength=costs.shape[1]).max() <= capacity
    assert costs[np.arange(len(costs)), labels].sum() == pytest.approx(optimum(costs, capacity), abs=1e-6)


@given(problems(), st.integers(0, 2**32 - 1))
def test_any_feasible_start_leads_to_the_optimum(problem, seed):
    costs, capacity = problem
    n, k = costs.shape
    start = np.random.default_rng(seed).permutation(np.repeat(np.arange(k), capacity))[:n]
    labels = assign_balanced(costs, capacity, start)
    assert np.bincount(labels, minlength=k).max() <= capacity
    assert costs[np.arange(n), labels].sum() == pytest.approx(optimum(costs, capacity), abs=1e-6)


def test_larger_problem_with_equal_shares():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(240, 8))
    costs = ((points[:, None] - points[None, :8]) ** 2).sum(axis=-1)
    labels = assign_balanced(costs, 30)
    assert np.bincount(labels).tolist() == [30] * 8
    assert costs[np.arange(240), labels].sum() == pytest.approx(optimum(costs, 30))


def test_the_start_is_not_changed():
    start = np.array([0, 1, 0, 1])
    assign_balanced(np.array([[1.0, 0.0], [0.0, 1.0]] * 2), 2, start)
    assert start.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("costs", "capacity", "start", "reason"),
    [
        (np.zeros((3, 2)), 1, None, "2 clusters of 1 cannot hold 3 points; at least 2 is needed"),
        (np.zeros((3, 0)), 1, None, "no empty axis"),
        (np.zeros(3), 1, None, "costs: expected"),
        (np.array([[np.nan, 1.0]]), 1, None, "NaN"),
        (np.zeros((3, 2)), 2, np.array([0, 0, 0]), "holds more than 2"),
        (np.zeros((3, 2)), 2, np.array([0, 2, 0]), "clusters below 2"),
        (np.zeros((3, 2)), 2, np.array([0, 1]), "expected 3 clusters"),
    ],
)
def test_impossible_problems_are_refused(costs, capacity, start, reason):
    with pytest.raises(ValueError, match=reason):
        assign_balanced(costs, capacity, start)

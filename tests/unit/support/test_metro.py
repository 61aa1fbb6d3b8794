import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metro import Placement, exact, greedy


def check(choice, active, placement):
    """A choice is one holder per active expert, and says so."""
    held = placement.held[np.arange(placement.n_experts), choice.rank_of]
    assert held.all()
    assert choice.load == np.bincount(choice.rank_of[active], minlength=placement.ranks).tolist()
    still = ~active | placement.single
    assert (choice.rank_of[still] == placement.home[still]).all()


@st.composite
def problems(draw):
    ranks, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    n_experts = draw(st.integers(1, ranks * per_rank))
    extra = draw(
        st.lists(
            st.integers(-1, n_experts - 1),
            min_size=ranks * per_rank - n_experts,
            max_size=ranks * per_rank - n_experts,
        )
    )
    slots = draw(st.permutations([*range(n_experts), *extra]))
    active = draw(st.lists(st.booleans(), min_size=n_experts, max_size=n_experts))
    return np.array(active), Placement(np.array(slots), n_experts, ranks)


def least(active, placement):
    """Return the optimum by trying everything."""
    holders = [np.flatnonzero(placement.held[e]) for e in np.flatnonzero(active)]
    return min(
        max(np.bincount(ranks, minlength=placement.ranks)) if ranks else 0
        for ranks in itertools.product(*holders)
    )


@pytest.mark.slow
@given(problems())
def test_exact_is_what_trying_everything_finds(problem):
    active, placement = problem
    chosen = exact(active, placement)
    check(chosen, active, placement)
    check(greedy(active, placement), active, placement)
    assert max(chosen.load) == least(active, placement)


def test_greedy_takes_experts_with_few_holders_first_and_the_lowest_rank():
    placement = Placement([0, 1, 2, 0, 1, 3, 0, 4, 5], 6, 3)  # expert 0 everywhere, 1 on ranks 0 and 1
    choice = greedy(np.array([True, True, True, False, True, True]), placement)
    assert choice.rank_of.tolist() == [0, 1, 0, 1, 2, 2]  # expert 1 before 0; ranks 0 and 1 are then equal
    assert choice.load == [2, 1, 2]


def test_two_replicas_on_one_rank_are_one():
    placement = Placement([0, 0, 1, 2], 3, 2)
    assert placement.single.all()
    assert exact(np.array([True, True, True]), placement).load == [1, 2]
    assert placement.physical[0].tolist() == [0, -1]

"""The benchmark of replica choices gives no figures for choices that are none, or no optimum."""

from itertools import product

import numpy as np
import pytest

from eldr_bench.proof import Unproven
from eldr_lab.studies import metro
from tests.support.metro import Choice, Placement, exact, greedy

RANKS, EXPERTS = 3, 6
PLACEMENT = Placement([0, 1, 2, 3, 4, 0, 5, 1, 2], EXPERTS, RANKS)
ALL = np.ones(EXPERTS, dtype=np.bool_)


def test_a_choice_is_one_of_a_holder_for_each_active_expert():
    metro.prove("exact", exact(ALL, PLACEMENT), ALL, PLACEMENT)
    metro.prove("greedy", greedy(ALL, PLACEMENT), ALL, PLACEMENT)


def test_a_rank_that_does_not_hold_the_expert_is_told():
    choice = exact(ALL, PLACEMENT)
    choice.rank_of[5] = 0
    with pytest.raises(Unproven, match="1 experts were given to ranks that do not hold them"):
        metro.prove("exact", choice, ALL, PLACEMENT)


def test_loads_of_another_choice_are_told():
    with pytest.raises(Unproven, match="loads"):
        metro.prove("exact", Choice([6, 0, 0], exact(ALL, PLACEMENT).rank_of), ALL, PLACEMENT)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_by_flows_is_that_of_all_choices(seed):
    rng = np.random.default_rng(seed)
    slots = np.concatenate([np.arange(EXPERTS), rng.integers(0, EXPERTS, 3)])
    placement = Placement(rng.permutation(slots), EXPERTS, RANKS)
    active = rng.random(EXPERTS) < 0.7
    active[0] = True
    holders = [np.flatnonzero(held) for held in placement.held[active]]
    least = min(max(np.bincount(ranks, minlength=RANKS)) for ranks in product(*holders))
    assert [metro.is_least(top, active, placement) for top in range(1, EXPERTS + 1)] == [
        top == least for top in range(1, EXPERTS + 1)
    ]


def test_an_exact_choice_that_is_greedys_is_told(monkeypatch):
    monkeypatch.setattr(metro, "exact", metro.greedy)
    with pytest.raises(Unproven, match="not the least possible"):
        metro.times()


def test_steps_that_greedy_never_misses_are_no_measure_of_exact(monkeypatch):
    monkeypatch.setattr(metro, "greedy", metro.exact)
    monkeypatch.setattr(metro, "BATCHES", (16,))
    with pytest.raises(Unproven, match="no step makes exact do more"):
        metro.times()

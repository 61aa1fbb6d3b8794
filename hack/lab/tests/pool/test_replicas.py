"""Experts with replicas on the ranks of an engine."""

import numpy as np
import pytest

from eldr_lab.pool.active import on_ranks
from eldr_lab.pool.replicas import Held, fullest, place
from tests.support.metro.baselines import rank_loads, vllm_choice


@pytest.fixture(scope="module")
def shares(population):
    return -np.expm1(population.logs.astype(np.float64)).mean(0).reshape(3, 32)


@pytest.fixture(scope="module")
def steps(population):
    """Steps of 8 requests, int of shape (40, 8, 3, 4)."""
    rng = np.random.default_rng(0)
    record, step = (rng.integers(0, n, (40, 8)) for n in population.steps.shape[:2])
    cells = population.steps[record, step].reshape(40, 8, 3, 4).astype(int)
    return cells - 32 * np.arange(3)[:, None]


def mean(steps, placements, balance):
    return np.mean([fullest(ids, placements, balance) for ids in steps])


def test_without_replicas_every_choice_is_the_same(shares, steps):
    for placing in ("tokens", "activations"):
        places = place(shares, 8, 4, 1.0, placing)
        assert [one.physical_to_logical.size for one in places] == [32, 32, 32]
        by = [mean(steps, places, balance) for balance in ("tokens", "greedy", "exact")]
        assert by[0] == by[1] == by[2]


@pytest.mark.parametrize("placing", ["tokens", "activations"])
def test_replicas_help_whom_activated_experts_are_balanced_for(shares, steps, placing):
    none = mean(steps, place(shares, 8, 4, 1.0, placing), "exact")
    places = place(shares, 8, 4, 1.25, placing)
    by_tokens, greedy, exact = (mean(steps, places, balance) for balance in ("tokens", "greedy", "exact"))
    assert exact <= greedy < none < by_tokens


def test_ranks_with_tokens_of_their_own_count_them_from_0(shares, steps):
    places = place(shares, 8, 4, 1.5, "tokens")
    for ids in steps[:5]:
        found = fullest(ids, places, "tokens", own_tokens=True)
        for layer, one in enumerate(places):
            chosen = np.concatenate([vllm_choice(part, one) for part in np.array_split(ids[:, layer], 4)])
            assert found[layer] == rank_loads(chosen, one).max()
    assert mean(steps, places, "tokens") != np.mean(
        [fullest(ids, places, "tokens", own_tokens=True) for ids in steps]
    )
    assert (fullest(steps[0], places, "exact", own_tokens=True) == fullest(steps[0], places, "exact")).all()


def test_slots_are_a_multiple_of_the_ranks(shares):
    assert {one.per_rank for one in place(shares, 8, 3, 1.1, "activations")} == {12}


def test_an_engine_waits_for_the_rank_that_its_choice_makes_fullest(population, shares):
    """The same steps as counted by hand."""
    placements = place(shares, 6, 4, 1.25, "activations")
    ids = {}
    for balance in ("tokens", "exact"):
        union = on_ranks(population, sampled=True, ranks=4, held=Held(placements, balance))
        for record in range(6):
            union.join(record, 0)
        found = union.count(5)
        cells = population.steps[:6, 5].reshape(6, 3, 4).astype(int) - 32 * np.arange(3)[:, None]
        assert found.fullest == fullest(cells, placements, balance).mean()
        assert found.all == np.mean([len(np.unique(cells[:, layer])) for layer in range(3)])
        ids[balance] = found.fullest
    assert ids["exact"] < ids["tokens"]


def test_replicas_need_single_steps(population, shares):
    held = Held(place(shares, 6, 4, 1.25, "activations"), "exact")
    with pytest.raises(ValueError, match="use sampled unions"):
        on_ranks(population, sampled=False, ranks=4, held=held)

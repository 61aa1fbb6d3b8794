import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.engine.balance.packing import activation_weights, spread
from tests.support.metro import Placement, exact
from tests.support.metro.baselines import pack


@st.composite
def packings(draw):
    ranks = draw(st.integers(1, 6))
    weights = draw(
        st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(0, 10), min_size=1, max_size=20)
    )
    n_physical = -(-len(weights) // ranks) * ranks + ranks * draw(st.integers(0, 4))
    return np.array(weights), n_physical, ranks


@pytest.mark.slow
@given(packings())
@pytest.mark.parametrize("policy", [pack, spread])
def test_every_expert_has_a_slot_and_every_slot_an_expert(policy, packing):
    weights, n_physical, ranks = packing
    where = policy(weights, n_physical, ranks)
    assert len(where) == n_physical
    assert (np.bincount(where, minlength=len(weights)) > 0).all()
    assert where.min() >= 0


@pytest.mark.slow
@given(packings(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_replicas_that_are_spread_are_never_worse_than_none_in_any_step(packing, each, seed):
    weights, n_physical, ranks = packing
    weights = np.resize(
        weights, ranks * each
    )  # as many homes on every rank: nothing is left that a replica could fill
    rng = np.random.default_rng(seed)
    steps = rng.random((20, len(weights))) < rng.random((20, 1))
    homes, more = (
        Placement(spread(weights, slots, ranks), len(weights), ranks)
        for slots in (len(weights), len(weights) + n_physical)
    )
    assert homes.single.all()
    assert (homes.held <= more.held).all()
    assert all(max(exact(step, more).load) <= max(exact(step, homes).load) for step in steps)


@pytest.mark.slow
@given(packings())
def test_no_rank_holds_an_expert_twice_while_another_lacks_it(packing):
    weights, n_physical, ranks = packing
    rows = spread(weights, n_physical, ranks).reshape(ranks, -1)
    placement = Placement(rows.ravel(), len(weights), ranks)
    twice = any(len(set(row)) < len(row) for row in rows.tolist())
    assert not twice or placement.held[:, [len(set(r)) < len(r) for r in rows.tolist()]].all()


def test_activation_weights_are_shares_of_steps():
    weights = activation_weights([0, 5, 1e9], 10)
    assert weights == pytest.approx([0, 1 - np.exp(-0.5), 1])

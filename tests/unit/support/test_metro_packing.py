import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.engine.balance.packing import activation_weights, spread
from tests.support.metro import Placement, PlacementError, exact_loads
from tests.support.metro.baselines import active_set, least_tokens, pack, rank_loads, vllm_choice
from tests.unit.support.metro_cases import Captured, random_case, slots, tokens


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
    assert (exact_loads(steps, more).max(1) <= exact_loads(steps, homes).max(1)).all()


@pytest.mark.slow
@given(packings())
def test_no_rank_holds_an_expert_twice_while_another_lacks_it(packing):
    weights, n_physical, ranks = packing
    rows = spread(weights, n_physical, ranks).reshape(ranks, -1)
    placement = Placement(rows.ravel(), len(weights), ranks)
    twice = any(len(set(row)) < len(row) for row in rows.tolist())
    assert not twice or placement.held[:, [len(set(r)) < len(r) for r in rows.tolist()]].all()


def test_pack_gives_the_heaviest_experts_replicas_and_balances_weight():
    where = pack([8.0, 5.0, 2.0, 2.0], 6, 2)
    assert np.bincount(where).tolist() == [2, 2, 1, 1]
    rows = where.reshape(2, 3).tolist()
    assert [sorted(row) for row in rows] == [[0, 1, 2], [0, 1, 3]]


def captured_loads(ranks, batch, ratio, layer):
    """Return mean fullest ranks of captured steps: none, EPLB's placement by tokens, ours; the choice is exact."""
    captured = Captured([ranks, batch, layer])
    n_experts = captured.traces.n_experts
    seen = [captured.step(layer, batch) for _ in range(60)]
    sums = np.bincount(np.concatenate(seen).ravel(), minlength=n_experts)
    steps = np.stack([active_set(captured.step(layer, batch), n_experts) for _ in range(40)])
    n_physical = slots(n_experts, ratio, ranks)
    weights = activation_weights(sums, len(seen))
    places = (
        pack(sums, n_experts, ranks),
        pack(sums, n_physical, ranks),
        spread(weights, n_physical, ranks),
    )
    return [exact_loads(steps, Placement(where, n_experts, ranks)).max(1) for where in places]


@pytest.mark.parametrize("ratio", [1.125, 1.25, 1.5])
@pytest.mark.parametrize("ranks", [4, 8])
def test_placed_by_activation_saturated_captured_steps_are_never_worse_than_without_replicas(ranks, ratio):
    for layer in range(4):
        none, _, ours = captured_loads(ranks, 128, ratio, layer)
        assert (ours <= none).all()


def test_placed_by_tokens_they_are():
    worse = [captured_loads(8, 128, 1.125, layer) for layer in range(4)]
    assert np.mean([by_tokens for _, by_tokens, _ in worse]) > np.mean([none for none, _, _ in worse])


@pytest.mark.parametrize(("ranks", "ratio"), [(4, 1.125), (8, 1.125), (8, 1.25)])
def test_placed_by_activation_captured_steps_have_less_on_the_fullest_rank(ranks, ratio):
    loads = np.array([captured_loads(ranks, 32, ratio, layer) for layer in range(4)])
    none, by_tokens, ours = loads.mean((0, 2))
    assert ours < by_tokens < none + 0.01


def test_activation_weights_are_shares_of_steps():
    weights = activation_weights([0, 5, 1e9], 10)
    assert weights == pytest.approx([0, 1 - np.exp(-0.5), 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack([1.0, 2.0], 3, 2), "n_physical: 3 slots for 2 experts on 2 ranks"),
        (lambda: pack([1.0, 2.0, 3.0], 2, 2), "n_physical: 2"),
        (lambda: spread([1.0, 2.0], 2, 0), "on 0 ranks"),
        (lambda: pack([1.0, np.nan], 2, 2), "weights: hold NaN"),
        (lambda: spread([1.0, -1.0], 2, 2), "weights: hold NaN, infinity or negatives"),
        (lambda: pack([], 2, 2), "expected one per expert"),
        (lambda: activation_weights([1.0], 0), "steps: 0"),
        (lambda: activation_weights([-1.0], 5), "tokens: hold"),
    ],
)
def test_what_cannot_be_placed_is_refused(call, message):
    with pytest.raises(PlacementError, match=message):
        call()


def test_vllm_spreads_tokens_by_the_hash_of_their_index():
    placement = Placement([0, 1, 2, 0, 1, 0], 3, 2)
    ids = np.array([[0, 1], [0, 1], [2, 0], [-1, 3]])
    # 2654435769 * i mod 2^32 = 0, 2654435769, 1013904242, 3668340011
    assert vllm_choice(ids, placement).tolist() == [[0, 1], [0, 4], [2, 5], [-1, -1]]
    assert vllm_choice(ids, placement, [2, 2]).tolist() == [[0, 1], [0, 4], [2, 0], [-1, -1]]
    with pytest.raises(ValueError, match="sizes: 3 tokens"):
        vllm_choice(ids, placement, [2, 1])


def test_least_tokens_balances_tokens_not_experts():
    placement = Placement([0, 1, 2, 0, 1, 3], 4, 2)
    ids = np.array([[0, 2], [0, 2], [0, -1]])
    assert least_tokens(ids, placement).tolist() == [[0, 2], [3, 2], [3, -1]]
    assert rank_loads(least_tokens(ids, placement), placement).tolist() == [2, 1]


def test_balancing_tokens_activates_more_than_the_exact_choice():
    rng = np.random.default_rng(0)
    _, placement = random_case(1)
    ids = tokens(rng, placement.n_experts, 8, 32)
    best = exact_loads(active_set(ids, placement.n_experts)[None], placement).max()
    for choice in (vllm_choice, least_tokens):
        chosen = choice(ids, placement)
        assert (placement.physical_to_logical[chosen] == ids).all()
        assert rank_loads(chosen, placement).max() > best

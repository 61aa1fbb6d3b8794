import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata, spearmanr

from eldr.core.layers import (
    activation_distances,
    centred_ranks,
    choose_layers,
    rank_correlation,
    sample_pairs,
)
from eldr.core.signature import signatures


@given(arrays(np.float64, st.integers(2, 60), elements=st.integers(0, 8).map(float) | st.floats(-3, 3)))
def test_ranks_are_scipys(values):
    np.testing.assert_allclose(centred_ranks(values), rankdata(values) - rankdata(values).mean(), atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_rho_is_scipys(seed, ties):
    rng = np.random.default_rng(seed)
    x, y = (np.round(rng.normal(size=50), 1 if ties else 9) for _ in range(2))
    assert rank_correlation(x, centred_ranks(y)) == pytest.approx(spearmanr(x, y).statistic, abs=1e-9)


def test_constant_distances_have_no_correlation():
    assert rank_correlation(np.ones(5), centred_ranks(np.arange(5.0))) == 0.0


@given(st.integers(2, 60), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_pairs_are_distinct_and_in_range(n, pairs, seed):
    first, second = sample_pairs(n, pairs, np.random.default_rng(seed))
    assert (first < second).all()
    assert second.max(initial=0) < n
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == len(first)
    assert len(first) <= max(pairs, n * (n - 1) // 2)


def test_one_request_has_no_pairs():
    with pytest.raises(ValueError, match="a pair needs 2, got 1"):
        sample_pairs(1, 10, np.random.default_rng(0))


def problem(seed, n=14, layers=4, experts=5):
    rng = np.random.default_rng(seed)
    # Continuous values: small integers tie in exact arithmetic, and rounding then decides on their ranks.
    counts = rng.uniform(0, 9, (n, layers, experts)).astype(np.float32)
    activations = counts + rng.uniform(0, 9, counts.shape)
    pairs = sample_pairs(n, 1000, rng)
    return counts, activation_distances(activations, pairs), pairs


def rho_of(counts, layers, target, pairs):
    mask = np.zeros(counts.shape[1], bool)
    mask[list(layers)] = True
    s = signatures(counts, np.ones(counts.shape[1:], np.float32), mask).astype(np.float64)
    return spearmanr(1 - (s[pairs[0]] * s[pairs[1]]).sum(1), target).statistic


@given(st.integers(0, 2**32 - 1))
def test_greedy_choice_is_that_of_a_brute_force(seed):
    counts, target, pairs = problem(seed)
    choice = choose_layers(counts.astype(np.float32), target, pairs)
    kept: list[int] = []
    for layer, rho in zip(choice.order, choice.curve, strict=True):
        values = {
            c: rho_of(counts, [*kept, c], target, pairs) for c in range(counts.shape[1]) if c not in kept
        }
        # float32 may swap two nearly equal distances of the 91: that moves rho by at most 6 * 2 * 90 / (91^3 - 91) = 1.4e-3.
        assert rho == pytest.approx(values[layer], abs=3e-3)
        assert rho >= max(values.values()) - 3e-3
        kept.append(layer)
    peak = int(np.argmax(choice.curve)) + 1
    assert set(np.flatnonzero(choice.mask)) == set(choice.order[:peak])
    assert choice.rho == max(choice.curve)


def test_a_layer_that_predicts_beats_one_of_noise():
    rng = np.random.default_rng(0)
    signal = rng.integers(0, 50, (60, 1, 8))
    counts = np.concatenate([rng.integers(0, 50, (60, 1, 8)), signal], axis=1)
    pairs = sample_pairs(60, 5000, rng)
    choice = choose_layers(counts.astype(np.float32), activation_distances(signal, pairs), pairs)
    assert choice.mask.tolist() == [False, True]
    assert choice.rho == pytest.approx(1.0)


def test_a_layer_nobody_uses_changes_nothing():
    counts, target, pairs = problem(1)
    wide = np.concatenate([counts, np.zeros_like(counts[:, :1])], axis=1)
    a, b = (choose_layers(c.astype(np.float32), target, pairs) for c in (counts, wide))
    assert b.rho == pytest.approx(a.rho)
    assert not b.mask[-1]


def test_ties_go_to_the_lowest_layer():
    counts, target, pairs = problem(2, layers=1)
    choice = choose_layers(np.repeat(counts, 3, axis=1).astype(np.float32), target, pairs)
    assert choice.order[0] == 0
    assert choice.mask.tolist() == [True, False, False]


def test_disagreeing_shapes_are_refused():
    counts, target, pairs = problem(3)
    with pytest.raises(ValueError, match="target: expected one distance per pair"):
        choose_layers(counts.astype(np.float32), target[1:], pairs)
    with pytest.raises(ValueError, match="NaN"):
        choose_layers(np.full(counts.shape, np.nan), target, pairs)


def test_all_subsets_never_beat_by_much_on_small_cases():
    counts, target, pairs = problem(4)
    choice = choose_layers(counts.astype(np.float32), target, pairs)
    subsets = (s for r in range(1, 5) for s in itertools.combinations(range(4), r))
    best = max(rho_of(counts, s, target, pairs) for s in subsets)
    assert best - 0.05 <= choice.rho <= best + 1e-3

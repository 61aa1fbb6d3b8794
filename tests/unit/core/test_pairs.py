import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.core.pairs import activation_distances, pair_dots, sample_pairs


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


def test_dots_of_counts_are_exact():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 200, (700, 32))
    pairs = sample_pairs(700, 3000, rng)
    expected = (counts[pairs[0]] * counts[pairs[1]]).sum(axis=1)
    np.testing.assert_array_equal(pair_dots(counts.astype(np.float32), pairs), expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.float64])
def test_activation_distances_are_cosine_distances(dtype):
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 9, (60, 3, 5)).astype(dtype)
    counts[7] = 0
    pairs = sample_pairs(60, 10_000, rng)
    flat = counts.reshape(60, -1).astype(np.float64)
    norm = np.linalg.norm(flat, axis=1)
    norm[7] = np.inf
    expected = 1.0 - (flat @ flat.T)[pairs] / (norm[pairs[0]] * norm[pairs[1]])
    np.testing.assert_allclose(activation_distances(counts, pairs), expected, atol=1e-6)
    assert (activation_distances(counts, pairs)[(pairs[0] == 7) | (pairs[1] == 7)] == 1.0).all()

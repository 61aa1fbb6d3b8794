import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eldr.core.signature import document_frequency, inverse_document_frequency, signatures, similarities

COUNTS = arrays(
    np.uint16, st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 6)), elements=st.integers(0, 99)
)


@given(COUNTS)
def test_idf_is_the_formula(counts):
    df = document_frequency(counts)
    idf = inverse_document_frequency(df, len(counts))
    for layer in range(counts.shape[1]):
        for expert in range(counts.shape[2]):
            users = sum(1 for request in counts if request[layer, expert] > 0)
            assert df[layer, expert] == users
            assert idf[layer, expert] == pytest.approx(math.log((len(counts) + 1) / (users + 1)), rel=1e-6)


@pytest.mark.slow
@given(COUNTS, st.integers(0, 2**32 - 1))
def test_signatures_have_unit_length_or_are_zero(counts, seed):
    rng = np.random.default_rng(seed)
    weights = rng.random(counts.shape[1:], dtype=np.float32)
    mask = rng.random(counts.shape[1]) < 0.6
    mask[0] = True
    s = signatures(counts, weights, mask)
    assert s.shape == (len(counts), mask.sum() * counts.shape[2])
    norms = np.linalg.norm(s, axis=1)
    used = (counts[:, mask] * weights[mask]).any(axis=(1, 2))
    np.testing.assert_allclose(norms, used, atol=1e-5)
    scaled = signatures(counts.astype(np.uint32) * 7, weights, mask)
    np.testing.assert_allclose(scaled, s, atol=1e-5)


@pytest.mark.slow
@given(COUNTS, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_similarities_equal_the_plain_product(counts, k, seed):
    rng = np.random.default_rng(seed)
    _, layers, experts = counts.shape
    weights = rng.random((layers, experts), dtype=np.float32)
    kept = np.flatnonzero(rng.random(layers) < 0.7)
    kept = kept if kept.size else np.array([0])
    centers = rng.random((k, kept.size * experts), dtype=np.float32)
    mask = np.zeros(layers, bool)
    mask[kept] = True
    flat = weights[kept].ravel()
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    got = similarities(counts[0], flat, kept, centers)
    np.testing.assert_allclose(got, signatures(counts[:1], weights, mask)[0] @ centers.T, atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "weights", "mask", "reason"),
    [
        (np.zeros((1, 2, 3), int), np.ones((3, 2), np.float32), np.ones(2, bool), "weights: expected shape"),
        (np.zeros((1, 2, 3), int), np.ones((2, 3), np.float32), np.ones(3, bool), "layer_mask: expected 2"),
        (np.zeros((1, 2, 3), int), np.ones((2, 3), np.float32), np.zeros(2, bool), "keeps no layer"),
        (np.full((1, 2, 3), np.nan), np.ones((2, 3), np.float32), np.ones(2, bool), "request 0 holds NaN"),
        (np.full((1, 2, 3), -1), np.ones((2, 3), np.float32), np.ones(2, bool), "negative count"),
    ],
)
def test_bad_input_names_the_field(counts, weights, mask, reason):
    with pytest.raises(ValueError, match=reason):
        signatures(counts, weights, mask)


def test_document_frequency_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"df: expected 0..3"):
        inverse_document_frequency(np.array([[4]]), 3)
    with pytest.raises(ValueError, match="n_requests"):
        inverse_document_frequency(np.array([[0]]), 0)

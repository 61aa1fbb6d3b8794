import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from eldr.core.clustering import align, balanced_kmeans, from_centers
from eldr.sim import traces


def unit(rng, n, d=6):
    x = rng.normal(size=(n, d)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_shares_are_equal_and_centers_are_unit(n, k, seed):
    rng = np.random.default_rng(seed)
    points = unit(rng, n)
    if n < k:
        with pytest.raises(ValueError, match=f"{n} points cannot fill {k} clusters"):
            balanced_kmeans(points, k, rng)
        return
    result = balanced_kmeans(points, k, rng)
    assert np.bincount(result.labels, minlength=k).max() <= -(-n // k)
    np.testing.assert_allclose(np.linalg.norm(result.centers, axis=1), 1.0, atol=1e-5)
    assert result.inertia == pytest.approx(
        float((1 - (points * result.centers[result.labels]).sum(1)).sum()), abs=1e-4
    )


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_more_iterations_never_raise_the_inertia(seed):
    points = unit(np.random.default_rng(seed), 40)
    runs = [
        balanced_kmeans(points, 4, np.random.default_rng(seed), max_iter=m).inertia for m in (1, 2, 4, 50)
    ]
    assert all(later <= earlier + 1e-4 for earlier, later in itertools.pairwise(runs))


def plain_kmeans(points, k, rng):
    """K-means as it is written in the paper, nothing saved: for comparison."""
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(k - 1):
        distance = np.minimum(distance, np.maximum(0.0, 1.0 - points @ points[chosen[-1]]))
        chosen.append(int(rng.choice(len(points), p=distance / distance.sum())))
    centers, capacity, labels = points[chosen].copy(), -(-len(points) // k), None
    for _n_iter in range(1, 51):
        costs = (1.0 - points @ centers.T).astype(np.float64)
        _, columns = linear_sum_assignment(np.repeat(costs, capacity, axis=1))
        if labels is not None and np.array_equal(columns // capacity, labels):
            break
        labels = columns // capacity
        for cluster in range(k):
            mean = points[labels == cluster].mean(axis=0)
            centers[cluster] = mean / np.linalg.norm(mean)
    inertia = float((1.0 - np.einsum("nd,nd->n", points, centers[labels])).sum())
    return inertia, centers, labels, _n_iter


def captured():
    flat = traces.load().prefill_counts[::3].reshape(256, -1).astype(np.float32)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "points", [captured(), unit(np.random.default_rng(2), 250, 20)], ids=["captured", "random"]
)
@pytest.mark.parametrize("k", [3, 8, 16])
def test_the_result_is_that_of_plain_kmeans(points, k):
    got = balanced_kmeans(points, k, np.random.default_rng(1), restarts=3)
    rng = np.random.default_rng(1)
    inertia, centers, labels, n_iter = min(
        (plain_kmeans(points, k, rng) for _ in range(3)), key=lambda run: run[0]
    )
    np.testing.assert_array_equal(got.labels, labels)
    np.testing.assert_array_equal(got.centers, centers)
    assert (got.inertia, got.n_iter) == (inertia, n_iter)


def test_duplicates_are_shared_evenly():
    points = np.tile(np.array([[1.0, 0.0]], np.float32), (8, 1))
    result = balanced_kmeans(points, 4, np.random.default_rng(0))
    assert np.bincount(result.labels).tolist() == [2, 2, 2, 2]
    assert result.inertia == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (np.zeros((3, 2), np.float32), "row 0 has length 0.0.*drop all-zero signatures"),
        (np.array([[1.0, 0.0], [np.nan, 0.0]], np.float32), "row 1 has length nan"),
        (np.zeros((0, 2), np.float32), "no empty axis"),
    ],
)
def test_bad_points_are_refused(points, reason):
    with pytest.raises(ValueError, match=reason):
        balanced_kmeans(points, 1, np.random.default_rng(0))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_alignment_is_a_permutation_that_maximises_similarity(k_new, k_old, seed):
    rng = np.random.default_rng(seed)
    new, old = unit(rng, k_new), unit(rng, k_old)
    order = align(new, old)
    assert sorted(order.tolist()) == list(range(k_new))
    if k_new == k_old:
        best = max(
            sum(new[p[i]] @ old[i] for i in range(k_old)) for p in itertools.permutations(range(k_new))
        )
        assert sum(new[order[i]] @ old[i] for i in range(k_old)) == pytest.approx(best, abs=1e-5)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_clustering_goes_on_from_given_centers(seed):
    rng = np.random.default_rng(seed)
    points, moved = unit(rng, 40), unit(rng, 24)
    first = balanced_kmeans(points, 4, rng)
    kept = first.centers.copy()
    again = from_centers(points, first.centers, 50)
    assert again.inertia <= first.inertia + 1e-4
    later = from_centers(moved, first.centers, 50)
    assert np.bincount(later.labels, minlength=4).tolist() == [6] * 4
    np.testing.assert_array_equal(first.centers, kept)
    once = from_centers(moved, first.centers, 1)
    np.testing.assert_array_equal(once.labels, from_centers(moved, kept, 1).labels)

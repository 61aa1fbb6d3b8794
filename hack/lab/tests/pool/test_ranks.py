"""Which experts lie on which rank."""

from dataclasses import replace

import numpy as np
import pytest

from eldr_lab.pool.active import on_ranks
from eldr_lab.pool.ranks import dealt, profiles
from eldr_lab.synthetic.centroids import fitted, similarities


@pytest.fixture(scope="module")
def centroids(small):
    return fitted(small.calibration, 4, 1)


def test_hot_experts_are_dealt_out_evenly():
    profile = np.random.default_rng(0).dirichlet(np.full(32, 0.3), size=3).astype(np.float32)
    order = dealt(profile, 4)
    assert sorted(order.tolist()) == list(range(96))
    cells = order.reshape(3, 4, 8)
    assert (cells // 32 == np.arange(3)[:, None, None]).all()  # of each layer its own
    for layer, ranks in enumerate(cells % 32):
        rounds = np.sort(profile[layer])[::-1].reshape(8, 4)
        for rank in ranks:
            assert all(low <= value <= high for value, low, high in zip(
                np.sort(profile[layer][rank])[::-1], rounds.min(axis=1), rounds.max(axis=1), strict=True))  # fmt: skip
        # hottest and least hot of every pair of rounds meet on one rank
        assert {profile[layer].argmax(), np.argsort(-profile[layer], kind="stable")[7]} <= set(
            ranks[0].tolist()
        )


def test_profiles_are_those_of_the_nearest_requests(small, centroids):
    found = profiles(centroids, small.calibration)
    assert found.shape == (4, 3, 32)
    assert found.sum(axis=2) == pytest.approx(4.0, rel=0.02)  # experts per token
    nearest = similarities(centroids, small.calibration.prefill).argmax(axis=1)
    members = small.calibration.decode[nearest == 2] / 511
    assert found[2] == pytest.approx(members.mean(axis=0), rel=1e-5)


def test_profiles_need_decode_steps(small, centroids):
    silent = replace(small.calibration, decode_tokens=np.zeros(len(small.calibration), dtype=np.int64))
    with pytest.raises(ValueError, match="spread: no request for calibration tells"):
        profiles(centroids, silent)


@pytest.mark.parametrize("sampled", [False, True])
def test_spreading_a_clusters_experts_empties_the_fullest_rank(small, centroids, sampled):
    """Experts of one kind of request, on ranks where the hot ones lie together and where they are dealt out."""
    requests = small.requests
    of_one = np.flatnonzero(similarities(centroids, requests.prefill).argmax(axis=1) == 0)[:12]
    profile = profiles(centroids, small.calibration)[0]
    together = (np.argsort(-profile, axis=1) + 32 * np.arange(3)[:, None]).reshape(-1)
    found = []
    for order in (together, dealt(profile, 4)):
        union = on_ranks(requests, sampled=sampled, ranks=4, order=order)
        for record in of_one.tolist():
            union.join(record, 0)
        counts = [union.count(step) for step in range(1, 40)]
        found.append(np.mean([count.fullest for count in counts]))
        assert counts[0].all == without_order(requests, of_one, sampled)
    assert found[1] < 0.9 * found[0]
    assert found[1] >= counts[0].all / 4 - 1e-9


def without_order(requests, records, sampled):
    union = on_ranks(requests, sampled=sampled)
    for record in records.tolist():
        union.join(record, 0)
    return union.count(1).all

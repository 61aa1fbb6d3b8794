"""What placement saves, against batches drawn at random."""

import numpy as np
import pytest

from eldr.contract import BATCH_BUCKETS
from eldr.core.random_batches import Mix, expected_active, random_unions, steps_by_size, unions_by_size
from eldr.core.saving import LEAST_WINDOWS, Batches, saving

LAYERS, EXPERTS, TOP = 3, 24, 4


def kinds(rng):
    """Two kinds of requests with experts of their own, as chances of a token."""
    chances = rng.dirichlet(np.full(EXPERTS // 2, 0.8), (2, LAYERS))
    full = np.zeros((2, LAYERS, EXPERTS))
    full[0, :, : EXPERTS // 2], full[1, :, EXPERTS // 2 :] = chances[0], chances[1]
    return full


def tokens(rng, chances):
    """One token of each request and layer: which experts it chooses, one after the other by their chances."""
    with np.errstate(divide="ignore"):
        keys = np.log(chances) + rng.gumbel(size=chances.shape)
    chosen = np.zeros(chances.shape, dtype=bool)
    np.put_along_axis(chosen, np.argpartition(-keys, TOP, axis=-1)[..., :TOP], values=True, axis=-1)
    return chosen


def run(rng, draw, n_windows=60, steps=10):
    """Let steps run whose batches ``draw`` makes; return windows, and the mix of which each window is a group."""
    windows, chosen, seen = [], np.zeros((n_windows, LAYERS, EXPERTS)), np.zeros(n_windows)
    for window in range(n_windows):
        active, sizes = 0.0, np.zeros(len(BATCH_BUCKETS))
        before = seen[window]
        for _ in range(steps):
            batch = tokens(rng, np.stack(draw(rng)))
            active += np.any(batch, axis=0).sum(axis=1).mean()
            sizes[np.searchsorted(BATCH_BUCKETS, len(batch))] += 1
            chosen[window] += np.sum(batch, axis=0)
            seen[window] += len(batch)
        windows.append(Batches(active, tuple(sizes), float(seen[window] - before)))
    return windows, Mix(seen[:, None, None] - chosen, seen)


@pytest.mark.slow
def test_random_batches_save_nothing_and_like_ones_do():
    rng = np.random.default_rng(3)
    known = kinds(rng)
    sizes = (1, 2, 3, 5, 8, 11)

    def mixed(rng):
        return [known[rng.integers(2)] for _ in range(rng.choice(sizes))]

    def alike(rng):
        return [known[rng.integers(2)]] * rng.choice(sizes)

    windows, mix = run(rng, mixed)
    found = saving([windows], mix, BATCH_BUCKETS)
    assert abs(found.share) < 3 * found.error < 0.05
    assert found.steps == 600
    assert found.batch == pytest.approx(np.mean(sizes), abs=0.7)
    windows, mix = run(rng, alike)
    found = saving([windows], mix, BATCH_BUCKETS)
    assert found.share > 0.2
    assert found.share > 10 * found.error


@pytest.mark.costly
@pytest.mark.parametrize("known_from", [8, 60])
def test_the_error_is_what_repetitions_show(known_from):
    """Of what runs and of the mix: few groups tell less of it."""
    rng = np.random.default_rng(5)
    known = kinds(rng)

    def mixed(rng):
        return [known[rng.integers(2)] for _ in range(6)]

    found = [
        saving([run(rng, mixed, 20)[0]], run(rng, mixed, known_from, steps=1)[1], BATCH_BUCKETS)
        for _ in range(60)
    ]
    spread = np.std([one.share for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.35)
    assert abs(np.mean([one.share for one in found])) < 3 * spread / np.sqrt(len(found)), "no bias"


def test_spans_in_which_the_same_requests_run_are_no_evidence_each():
    rng = np.random.default_rng(6)
    _, mix = run(rng, lambda rng: [kinds(np.random.default_rng(1))[rng.integers(2)]] * 4, 40, steps=2)
    sizes = np.zeros(len(BATCH_BUCKETS))
    sizes[3] = 50.0
    apart, alike = (
        [
            Batches(50 * level, tuple(sizes), 200.0)
            for level in rng.permutation(np.linspace(9.0, 11.0, levels))
            for _ in range(30 // levels)
        ]
        for levels in (30, 5)
    )
    alone, together = (saving([one], mix, BATCH_BUCKETS).error for one in (apart, alike))
    assert together > 1.4 * alone
    assert saving([apart[:15], apart[15:]], mix, BATCH_BUCKETS).error == pytest.approx(alone, rel=0.3)


def test_of_few_requests_random_batches_are_told_without_bias():
    rng = np.random.default_rng(2)
    population = rng.dirichlet(np.full(EXPERTS, 0.1), (400, LAYERS))
    steps = np.zeros(13)
    steps[12] = 1.0
    truth = unions_by_size(1.0 - population.mean(0), 12)[12]
    naive, found = [], []
    for _ in range(300):
        some = population[rng.integers(0, 400, 12)]
        lengths = rng.integers(1, 5, 12).astype(float)
        mix = Mix((1.0 - some) * lengths[:, None, None], lengths)
        naive.append(unions_by_size(mix.unused.sum(0) / lengths.sum(), 12)[12])
        found.append(expected_active(steps, mix))
    values = np.array([one.value for one in found])
    assert abs(values.mean() - truth) < 0.25 * abs(np.mean(naive) - truth)
    assert np.mean([one.error for one in found]) == pytest.approx(values.std(), rel=0.3)


def test_sizes_within_a_bucket_add_up_to_the_requests():
    bounds = (1, 2, 4, 8)
    buckets = np.array([3.0, 0.0, 2.0, 10.0])
    sizes = np.arange(9)
    for requests in (59.0, 65.0, 74.0, 89.0, 91.0):
        found = steps_by_size(buckets, requests, bounds)
        assert found.sum() == 15
        assert found @ sizes[: len(found)] == pytest.approx(requests)
        assert (found[1], found[3] + found[4], found[5:].sum()) == pytest.approx((3, 2, 10))
    assert steps_by_size(buckets, 91.0, bounds)[8] == 10.0, "full engines"
    for wrong in (0.0, 999.0):
        assert steps_by_size(buckets, wrong, bounds).sum() == 15
    assert steps_by_size(np.array([5.0, 0.0, 0.0, 0.0]), 5.0, bounds).tolist() == [0.0, 5.0]


def test_unions_of_random_batches():
    shares = np.array([[0.5, 0.5, 0.0], [1.0, 0.25, 0.25]])
    one, two, bucket = random_unions(shares, (1, 2, 4))
    assert one == pytest.approx((1.0 + 1.5) / 2)
    assert two == pytest.approx((1.5 + 1.0 + 2 * (1 - 0.75**2)) / 2)
    three, four = ((2 * (1 - 0.5**b) + 1.0 + 2 * (1 - 0.75**b)) / 2 for b in (3, 4))
    assert bucket == pytest.approx((three + four) / 2), "sizes within a bucket count alike"


@pytest.mark.parametrize(
    ("windows", "steps", "active"),
    [(LEAST_WINDOWS - 1, 50, 10.0), (LEAST_WINDOWS, 1, 10.0), (LEAST_WINDOWS, 50, 0.0)],
)
def test_too_little_is_not_told(windows, steps, active):
    sizes = (float(steps), *[0.0] * (len(BATCH_BUCKETS) - 1))
    mix = Mix(np.full((4, 2, 8), 75.0), np.full(4, 100.0))
    assert saving([[Batches(active, sizes, float(steps))] * windows], mix, BATCH_BUCKETS) is None

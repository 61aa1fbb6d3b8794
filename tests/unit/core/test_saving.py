"""What placement saves, against batches drawn at random."""

import numpy as np
import pytest

from eldr.contract import BATCH_BUCKETS
from eldr.core.saving import LEAST_STEPS, LEAST_WINDOWS, Batches, random_unions, saving

LAYERS, EXPERTS, TOP = 3, 24, 4


def kinds(rng):
    """Two kinds of requests with experts of their own, as chances of a token."""
    chances = rng.dirichlet(np.full(EXPERTS // 2, 0.8), (2, LAYERS))
    full = np.zeros((2, LAYERS, EXPERTS))
    full[0, :, : EXPERTS // 2], full[1, :, EXPERTS // 2 :] = chances[0], chances[1]
    return full


def tokens(rng, chances):
    """One token of each layer: which experts it chooses."""
    chosen = np.zeros((LAYERS, EXPERTS), dtype=bool)
    for layer in range(LAYERS):
        known = np.flatnonzero(chances[layer])
        chosen[layer, rng.choice(known, TOP, replace=False, p=chances[layer][known])] = True
    return chosen


def run(rng, draw, n_windows=60, steps=10):
    """Let steps run whose batches ``draw`` makes; return windows and the shares of the tokens."""
    windows, shares, seen = [], np.zeros((LAYERS, EXPERTS)), 0
    for _ in range(n_windows):
        active, sizes = 0.0, np.zeros(len(BATCH_BUCKETS))
        for _ in range(steps):
            batch = [tokens(rng, chances) for chances in draw(rng)]
            active += np.any(batch, axis=0).sum(axis=1).mean()
            sizes[np.searchsorted(BATCH_BUCKETS, len(batch))] += 1
            shares += np.sum(batch, axis=0)
            seen += len(batch)
        windows.append(Batches(active, tuple(sizes)))
    return windows, shares / seen


def test_random_batches_save_nothing_and_like_ones_do():
    rng = np.random.default_rng(3)
    known = kinds(rng)
    sizes = (1, 2, 3, 5, 8, 11)

    def mixed(rng):
        return [known[rng.integers(2)] for _ in range(rng.choice(sizes))]

    def alike(rng):
        return [known[rng.integers(2)]] * rng.choice(sizes)

    windows, shares = run(rng, mixed)
    found = saving(windows, random_unions(shares, BATCH_BUCKETS), BATCH_BUCKETS)
    assert abs(found.share) < 3 * found.error < 0.05
    assert found.steps == 600
    assert found.batch == pytest.approx(np.mean(sizes), abs=0.7)
    windows, shares = run(rng, alike)
    found = saving(windows, random_unions(shares, BATCH_BUCKETS), BATCH_BUCKETS)
    assert found.share > 0.2
    assert found.share > 10 * found.error


def test_the_error_is_what_repetitions_show():
    rng = np.random.default_rng(5)
    known = kinds(rng)

    def mixed(rng):
        return [known[rng.integers(2)] for _ in range(6)]

    unions = random_unions(run(rng, mixed, 200)[1], BATCH_BUCKETS)
    found = [saving(run(rng, mixed, 20)[0], unions, BATCH_BUCKETS) for _ in range(40)]
    spread = np.std([one.share for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.4)


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
    unions = random_unions(np.full((2, 8), 0.25), BATCH_BUCKETS)
    assert windows * steps < LEAST_STEPS or active == 0.0 or windows < LEAST_WINDOWS
    assert saving([Batches(active, sizes)] * windows, unions, BATCH_BUCKETS) is None

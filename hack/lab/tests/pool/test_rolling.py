"""Centroids re-fitted within a run."""

import numpy as np
import pytest

from eldr_lab.pool.rolling import Refits, Rolling


def unit(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture
def refits():
    """Requests 0..5 around one direction, 6..11 around another; centroids between and far from both."""
    points = unit(np.concatenate([0.5 + 0.01 * np.arange(6), 1.2 + 0.01 * np.arange(6)]))
    return Refits(points, unit(np.array([0.0, 1.5])), every=2.0, window=4.0, balanced=True)


def feed(rolling, records, begin):
    for at, record in enumerate(records):
        scores = rolling.similarity(record, begin + at * 0.1)
    return scores


def test_the_first_centroids_serve_until_a_window_is_full(refits):
    rolling = Rolling(refits)
    feed(rolling, range(12), 0.0)
    assert rolling.similarity(0, 3.9) == pytest.approx((refits.centers @ refits.points[0]).tolist())
    assert rolling.fits == 0
    near, far = rolling.similarity(0, 4.0)
    assert rolling.fits == 1
    assert near > 0.99 > far
    assert refits.centers == pytest.approx(unit(np.array([0.0, 1.5])))


def test_only_the_window_counts(refits):
    rolling = Rolling(refits)
    feed(rolling, range(12), 0.0)
    feed(rolling, range(6, 12), 5.0)  # the fit of 4.0 has seen both directions, that of 6.0 only the second
    assert rolling.similarity(0, 5.7)[0] > 0.99
    rolling.similarity(6, 6.0)
    assert rolling.fits == 2
    assert max(rolling.similarity(0, 6.1)) < 0.9


def test_too_few_requests_keep_the_centroids(refits):
    rolling = Rolling(refits)
    rolling.similarity(0, 1.0)
    rolling.similarity(0, 50.0)
    assert rolling.fits == 0


def test_requests_without_a_signature_are_left_out(refits):
    points = refits.points.copy()
    points[0] = 0.0
    rolling = Rolling(Refits(points, refits.centers, 2.0, 4.0, balanced=True))
    feed(rolling, [0, 0, 0], 0.0)
    assert rolling.similarity(0, 4.0) == [0.0, 0.0]
    assert rolling.fits == 0


@pytest.mark.parametrize("balanced", [True, False])
def test_clusters_are_equal_shares_only_if_asked_for(refits, balanced):
    rolling = Rolling(Refits(refits.points, refits.centers, 2.0, 4.0, balanced))
    feed(rolling, [0, 1, 2, 3, 4, 5, 0, 1, 2, 11], 0.0)
    rolling.similarity(0, 4.0)
    of_far = rolling.similarity(11, 4.1)[1]
    # half of ten are five: four of the crowd's have to go to the other one
    assert of_far == pytest.approx(1.0) if not balanced else of_far < 0.95

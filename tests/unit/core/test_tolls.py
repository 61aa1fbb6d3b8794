"""Tolls: the prior favours every engine as often as it should, however stale the centroids are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.core.policy import Situation
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.core.tolls import STEP, Tolls

STEP_TIME = QWEN3_30B_MI300X


def settle(tolls, scores, turn, step_times=None, slots=None):
    """Let one request pass, and return which engine it favoured after tolls."""
    slots = slots or range(len(scores))
    charged = tolls.of(slots)
    left = [score - toll for score, toll in zip(scores, charged, strict=True)]
    step_times = step_times or [STEP_TIME] * len(scores)
    tolls.settle(
        Situation([0] * len(scores), turn, scores, slots=slots, step_times=step_times, tolls=charged)
    )
    return max(range(len(left)), key=lambda at: -math.inf if math.isnan(left[at]) else left[at])


def shares(tolls, traffic, step_times=None, skip=1000):
    """Return each engine's share of favours once tolls have settled."""
    favours = np.zeros(len(traffic[0]))
    for turn, scores in enumerate(traffic):
        at = settle(tolls, scores, turn, step_times)
        favours[at] += turn >= skip
    return favours / favours.sum()


def drifted(n, rng, popular=0.7):
    """Requests of four kinds, each near one of four centroids; most are of the last kind."""
    for kind in rng.choice(4, size=n, p=[*[(1 - popular) / 3] * 3, popular]):
        scores = rng.normal(0.3, 0.05, size=4)
        scores[kind] += 0.5
        yield scores.tolist()


def test_centroids_that_are_near_to_most_requests_do_not_crowd_their_workers():
    rng = np.random.default_rng(0)
    assert np.allclose(shares(Tolls(), list(drifted(6000, rng))), 0.25, atol=0.02)


def test_fresh_centroids_are_hardly_charged():
    rng = np.random.default_rng(1)
    tolls, most = Tolls(), 0.0
    for turn, scores in enumerate(drifted(5000, rng, popular=0.25)):
        settle(tolls, scores, turn)
        charged = tolls.of(range(4))
        most = max(most, max(charged) - min(charged))
    assert most < 0.5, "never as much as what tells kinds apart"
    assert np.ptp(charged) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("step_time", [StepTime(0.0, 0.0, 0.0, 128), StepTime(math.inf, 0.0, 0.0, 128)])
def test_step_times_that_are_none_count_as_any(step_time):
    rng = np.random.default_rng(3)
    traffic = [rng.random(2).tolist() for _ in range(4000)]
    assert shares(Tolls(), traffic, [step_time, STEP_TIME]) == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.floats(-1, 1) | st.just(math.nan), min_size=3, max_size=3), max_size=60),
    st.integers(1, 40),
)
def test_tolls_stay_within_what_similarities_differ_by(traffic, times):
    """However one-sided the traffic, and however long: nobody ever has to make up for more than a cosine's range."""
    tolls = Tolls()
    for turn, scores in enumerate(traffic * times):
        settle(tolls, scores, turn)
    charged = tolls.of(range(3))
    assert all(math.isfinite(toll) for toll in charged)
    assert max(charged) - min(charged) <= 2.0 + 4 * 3 * STEP


def test_a_worker_that_was_away_comes_back_with_the_toll_it_had():
    rng, tolls = np.random.default_rng(4), Tolls()
    shares(tolls, list(drifted(2000, rng)))
    before = tolls.of([0])
    for turn, scores in enumerate(drifted(2000, rng)):
        settle(tolls, scores[1:], turn, slots=[1, 2, 3])
    assert tolls.of([0]) == before
    assert abs(np.mean(tolls.of(range(4)))) < 0.05, "nobody left it far behind"


def test_who_has_no_centroid_has_no_part():
    tolls = Tolls()
    for turn in range(300):
        settle(tolls, [0.9, math.nan, 0.2], turn)
        settle(tolls, [math.nan] * 3, turn)
    first, second, third = tolls.of(range(3))
    assert second == 0.0
    assert first - third == pytest.approx(0.7, abs=3 * STEP)


def test_nothing_happens_without_a_preference():
    tolls = Tolls()
    bare = Situation([1, 2], 0, step_times=[STEP_TIME, STEP_TIME])
    for missing in (
        bare,
        bare._replace(similarity=[0.1, 0.9]),
        bare._replace(similarity=[0.1, 0.9], tolls=[0.0, 0.0]),
    ):
        tolls.settle(missing)
    assert tolls.of([0, 1]) == [0.0, 0.0]


@pytest.mark.parametrize("every", [2, 3, 4])
def test_requests_that_settle_nothing_between_do_not_skew_shares(every):
    """Turns of the pool count requests without a signature as well; tolls count their own."""
    rng, tolls = np.random.default_rng(0), Tolls()
    favours = np.zeros(4)
    for turn in range(0, 6000 * every, every):
        scores = rng.normal(0.5, 0.05, size=4).tolist()
        favours[settle(tolls, scores, turn)] += 1
    assert np.allclose(favours / favours.sum(), 0.25, atol=0.02)


def test_step_times_that_are_learned_meanwhile_change_the_shares():
    rng, tolls = np.random.default_rng(0), Tolls()
    step_times = [STEP_TIME, STEP_TIME]
    settle(tolls, [0.5, 0.5], 0, step_times)
    step_times[1] = STEP_TIME.scaled(2.0)
    favours = np.zeros(2)
    for turn in range(6000):
        favours[settle(tolls, rng.normal(0.5, 0.05, size=2).tolist(), turn, step_times)] += turn >= 1000
    assert favours[0] / favours.sum() == pytest.approx(0.8, abs=0.03)


def test_it_says_whom_similarity_favours_after_tolls():
    tolls = Tolls()

    def favours(scores, slots):
        situation = Situation(
            [0] * len(scores),
            0,
            scores,
            slots=slots,
            step_times=[STEP_TIME] * len(scores),
            tolls=tolls.of(slots),
        )
        return tolls.settle(situation)

    assert favours([0.5, math.nan, 0.505], [4, 7, 9]) == 2
    assert favours([0.5, math.nan, 0.505], [4, 7, 9]) == 0, "its toll is 0.01 by now"
    assert favours([math.nan], [7]) is None
    assert tolls.settle(Situation([0], 0)) is None


def test_tolls_of_workers_that_are_gone_are_forgotten():
    tolls = Tolls()
    settle(tolls, [0.1, 0.9], 0, slots=[3, 5])
    assert any(tolls.of([3]))
    tolls.retain([5])
    assert tolls.of([3, 5])[0] == 0.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.core.policy import JSQ, BandJSQ, Domain, PowerOfTwo, Random, RoundRobin, Situation, make_policy

LOADS = st.lists(st.integers(0, 5), min_size=1, max_size=8).map(np.array)


def rng(seed=0):
    return np.random.default_rng(seed)


@given(LOADS, st.integers(0, 1000))
def test_jsq_takes_a_least_loaded_worker_and_rotates_ties(loads, turn):
    choice = JSQ().choose(Situation(loads, turn), rng())
    assert loads[choice.worker] == loads.min()
    ties = np.flatnonzero(loads == loads.min())
    seen = {JSQ().choose(Situation(loads, t), rng()).worker for t in range(turn, turn + len(ties))}
    assert seen == set(ties)


@st.composite
def banded(draw):
    loads = draw(LOADS)
    scores = draw(
        st.lists(st.floats(-1, 1) | st.just(float("nan")), min_size=len(loads), max_size=len(loads))
    )
    return (
        loads,
        np.array(scores, np.float32),
        draw(st.floats(0, 2)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 99)),
    )


@given(banded())
def test_eldr_takes_the_least_loaded_of_the_band(case):
    loads, scores, tau, minimum, turn = case
    choice = BandJSQ(tau=tau, min_candidates=minimum).choose(Situation(loads, turn, scores), rng())
    known = scores[~np.isnan(scores)]
    floor = (known.max() if known.size else 0.0) - tau
    band = [i for i, s in enumerate(scores) if np.isnan(s) or s >= np.float32(floor)]
    if len(band) < minimum:
        ranked = sorted(range(len(scores)), key=lambda i: -np.inf if np.isnan(scores[i]) else -scores[i])
        band = ranked[:minimum]
    assert choice.candidates == len(band)
    assert choice.worker in band
    assert loads[choice.worker] == min(loads[i] for i in band)


def test_eldr_without_a_preference_is_jsq():
    loads = np.array([3, 1, 2])
    assert BandJSQ().choose(Situation(loads, 0), rng()).worker == 1
    zero = BandJSQ().choose(Situation(loads, 0, np.zeros(3, np.float32)), rng())
    assert zero.worker == 1
    assert zero.candidates == 3


def test_tau_zero_is_top_one_and_a_worker_without_centroid_is_always_a_candidate():
    loads, scores = np.array([9, 0, 0]), np.array([0.9, 0.8, 0.1], np.float32)
    assert BandJSQ(tau=0.0).choose(Situation(loads, 0, scores), rng()).worker == 0
    assert BandJSQ(tau=0.1001).choose(Situation(loads, 0, scores), rng()).worker == 1
    scores[2] = np.nan
    assert BandJSQ(tau=0.0).choose(Situation(loads, 0, scores), rng()).worker == 2


@given(LOADS, st.integers(0, 2**32 - 1))
def test_power_of_two_never_takes_the_worse_of_its_pair(loads, seed):
    choice = PowerOfTwo().choose(Situation(loads, 0), rng(seed))
    assert 0 <= choice.worker < len(loads)
    if len(loads) > 1 and (loads == loads.max()).sum() == 1:
        assert loads[choice.worker] < loads.max()


def test_random_and_round_robin_spread():
    loads = np.zeros(4, int)
    generator = rng()
    counts = np.bincount([Random().choose(Situation(loads, t), generator).worker for t in range(4000)])
    assert counts.min() > 800
    assert [RoundRobin().choose(Situation(loads, t), generator).worker for t in range(5)] == [0, 1, 2, 3, 0]


def test_domain_uses_its_group_and_falls_back_to_everybody():
    policy = Domain({"code": frozenset({1, 3}), "law": frozenset({7})})
    loads, slots = np.array([0, 5, 0, 4]), np.array([0, 1, 2, 3])
    assert policy.choose(Situation(loads, 0, slots=slots, label="code"), rng()).worker == 3
    for label in ("law", "poetry", None):
        assert policy.choose(Situation(loads, 0, slots=slots, label=label), rng()).worker in {0, 2}


@pytest.mark.parametrize("name", ["ELDR", "JSQ", "RoundRobin", "PowerOfTwo", "Random", "Domain"])
def test_every_policy_serves_a_single_worker(name):
    policy = make_policy(name)
    assert policy.name == name
    assert policy.choose(Situation(np.array([3]), 5, np.array([0.1], np.float32)), rng()).worker == 0


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="unknown name 'Best'; known are ELDR"):
        make_policy("Best")
    with pytest.raises(ValueError, match=r"tau: expected 0\.\.2, got -1"):
        make_policy("ELDR", tau=-1)
    with pytest.raises(ValueError, match="tau"):
        make_policy("ELDR", tau=float("nan"))
    with pytest.raises(ValueError, match="min_candidates"):
        make_policy("ELDR", min_candidates=0)

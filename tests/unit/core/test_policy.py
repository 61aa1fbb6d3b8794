import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.core.balancers import JSQ, Domain, PowerOfTwo, Random, RoundRobin
from eldr.core.band import BandJSQ
from eldr.core.domains import groups_by_share
from eldr.core.policies import make_policy
from eldr.core.policy import Situation

LOADS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("requests", "tokens", "cost", "best"),
    [
        (
            [3, 4],
            [64_000, 3000],
            0.0,
            0,
        ),  # what a token takes is not known: sequences count, as in the papers
        ([3, 4], [64_000, 3000], 1e-4, 1),  # one long context is more than one sequence more
        ([3, 4], [8_000, 3000], 1e-4, 0),
        ([1, 2], [], 1e-4, 0),
    ],
)
def test_load_is_sequences_and_their_context_by_its_cost(requests, tokens, cost, best):
    situation = Situation(requests, 0, tokens=tokens, token_cost=cost)
    for policy in (JSQ(), PowerOfTwo(), BandJSQ()):
        assert policy.choose(situation, rng()).position == best
    domain = Domain({"a": frozenset({0, 1})})
    assert domain.choose(situation._replace(slots=[0, 1], label="a"), rng()).position == best


@st.composite
def situations(draw):
    """Situations of up to 40 engines with many ties, a band and a minimum of candidates."""
    loads = draw(st.lists(st.integers(0, 5), min_size=1, max_size=40))
    score = st.floats(-1, 1, width=32) | st.sampled_from([0.0, 0.5, 0.75, 1.0, float("nan")])
    scores = draw(st.none() | st.lists(score, min_size=len(loads), max_size=len(loads)))
    situation = Situation(
        loads,
        draw(st.integers(0, 99)),
        scores,
        list(range(len(loads))),
        draw(st.sampled_from([*"abcd", None])),
    )
    return situation, draw(st.floats(0, 2) | st.sampled_from([0.0, 0.25, 1.0])), draw(st.integers(1, 5))


def reference(situation, candidates):
    """Choose among candidates with arrays, as the policies did before they did without."""
    loads = np.array(situation.in_flight)[candidates]
    ties = np.flatnonzero(loads == loads.min())
    return int(candidates[ties[situation.turn % ties.size]]), candidates.size


@pytest.mark.slow
@given(situations())
def test_eldr_takes_the_least_loaded_of_the_band(case):
    situation, tau, minimum = case
    band = np.arange(len(situation.in_flight))
    if situation.similarity is not None:
        given_ = np.array(situation.similarity)
        scores = np.where(np.isnan(given_), np.inf, given_)
        known = scores[scores < np.inf]
        band = np.flatnonzero(scores >= (known.max() if known.size else 0.0) - tau)
        if band.size < minimum:
            band = np.sort(np.argsort(-scores, kind="stable")[:minimum])
    policy = BandJSQ(tau=tau, min_candidates=minimum)
    assert policy.choose(situation, rng()) == reference(situation, band)


@pytest.mark.slow
@given(situations())
def test_the_others_choose_as_with_arrays(case):
    situation, *_ = case
    everybody = np.arange(len(situation.in_flight))
    assert JSQ().choose(situation, rng()) == reference(situation, everybody)
    members = {"a": everybody[::3]}.get(situation.label, everybody)
    policy = Domain({"a": frozenset(range(0, 99, 3)), "b": frozenset({99})})
    assert policy.choose(situation, rng()) == reference(situation, members)


@given(LOADS, st.integers(0, 2**32 - 1))
def test_power_of_two_never_takes_the_worse_of_its_pair(loads, seed):
    choice = PowerOfTwo().choose(Situation(loads, 0), rng(seed))
    assert 0 <= choice.position < len(loads)
    if len(loads) > 1 and loads.count(max(loads)) == 1:
        assert loads[choice.position] < max(loads)


def test_random_and_round_robin_spread():
    loads = [0] * 4
    generator = rng()
    counts = np.bincount([Random().choose(Situation(loads, t), generator).position for t in range(4000)])
    assert counts.min() > 800
    assert [RoundRobin().choose(Situation(loads, t), generator).position for t in range(5)] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("name", ["ELDR", "JSQ", "RoundRobin", "PowerOfTwo", "Random", "Domain"])
def test_every_policy_serves_a_single_worker(name):
    policy = make_policy(name)
    assert policy.name == name
    assert policy.choose(Situation([3], 5, [0.1]), rng()).position == 0


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="unknown name 'Best'; known are ELDR"):
        make_policy("Best")
    with pytest.raises(ValueError, match=r"tau: expected 0\.\.2, got -1"):
        make_policy("ELDR", tau=-1)
    with pytest.raises(ValueError, match="tau"):
        make_policy("ELDR", tau=float("nan"))
    with pytest.raises(ValueError, match="min_candidates"):
        make_policy("ELDR", min_candidates=0)


@pytest.mark.slow
@given(situations(), st.floats(1, 3))
def test_a_bound_on_load_narrows_who_is_looked_at(case, bound):
    situation, tau, minimum = case
    loads = np.array(situation.in_flight)
    below = np.flatnonzero(loads + 1 <= bound * (loads.mean() + 1))
    choice = BandJSQ(tau=tau, min_candidates=minimum, max_load=bound).choose(situation, rng())
    assert choice.position in below
    inside = Situation(
        loads[below].tolist(),
        situation.turn,
        situation.similarity and [situation.similarity[at] for at in below],
    )
    alone = BandJSQ(tau=tau, min_candidates=minimum).choose(inside, rng())
    if situation.similarity is not None:
        assert choice == (below[alone.position], alone.n_candidates)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(sum), st.integers(1, 20))
def test_groups_divide_the_engines(shares, n):
    groups = groups_by_share([f"l{at}" for at in range(len(shares))], shares, n)
    members = sorted(engine for group in groups.values() for engine in group)
    assert members == list(range(n))
    assert all(groups.values())

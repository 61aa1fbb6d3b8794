"""MarginalUnion: what a request adds to everybody's steps."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr.core.balancers import JSQ
from eldr.core.marginal import MarginalUnion
from eldr.core.policies import make_policy
from eldr.core.policy import Situation
from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.core.union import Outlook

STEP_TIME = QWEN3_30B_MI300X


def choose(policy, *args, **kwargs):
    return policy.choose(Situation(*args, **kwargs), np.random.default_rng(0))


def outlooks(n):
    return st.builds(
        Outlook,
        active=st.lists(st.floats(0, 128), min_size=n, max_size=n),
        growth=st.lists(st.floats(0, 32), min_size=n, max_size=n),
    )


@st.composite
def situations(draw):
    loads = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))
    n = len(loads)
    scores = draw(st.none() | st.lists(st.floats(-1, 1) | st.just(math.nan), min_size=n, max_size=n))
    return Situation(
        loads,
        draw(st.integers(0, 99)),
        scores,
        outlook=draw(outlooks(n)),
        step_times=[STEP_TIME] * n,
        sequences=draw(st.integers(1, 3)),
    )


@pytest.mark.slow
@given(situations(), st.sampled_from([0.0, 0.23]), st.sampled_from([1.0, 1.25, math.inf]))
def test_the_cheapest_within_the_bound_is_chosen(situation, prior, bound):
    policy = MarginalUnion(prior=prior, max_load=bound)
    choice, costs = choose(policy, *situation), policy.costs(situation)
    n, loads = situation.sequences, situation.in_flight
    within = [at for at, load in enumerate(loads) if load + n <= bound * (sum(loads) / len(loads) + n)]
    assert choice.position in within
    assert costs[choice.position] <= min(costs[at] for at in within) + 1e-3 * abs(min(costs))
    assert 1 <= choice.n_candidates <= len(within)


def test_the_cost_is_the_growth_of_the_pools_step_time():
    slow = STEP_TIME.scaled(2)
    situation = Situation(
        [7, 0], 0, outlook=Outlook([40.0, 0.0], [3.0, 8.0]), step_times=[STEP_TIME, slow], sequences=2
    )
    before = 7 * STEP_TIME.seconds(7, 40.0)
    brief = (20.0 / 128) ** 4 * 7 * 3.0 * STEP_TIME.per_expert  # what others would soon have brought
    assert MarginalUnion().costs(situation) == pytest.approx(
        [9 * STEP_TIME.seconds(9, 43.0) - before - brief, 2 * slow.seconds(2, 8.0)]
    )


def test_context_costs_what_all_requests_read_more():
    law = replace(STEP_TIME, per_token=30e-9)
    situation = Situation(
        [7, 0],
        0,
        outlook=Outlook([0.0, 0.0], [0.0, 0.0]),
        step_times=[law, law],
        sequences=2,
        tokens=[90_000, 0],
        context=1000,
    )
    after = [9 * law.seconds(9, 0.0, 91_000), 2 * law.seconds(2, 0.0, 1000)]
    assert MarginalUnion().costs(situation) == pytest.approx(
        [after[0] - 7 * law.seconds(7, 0.0, 90_000), after[1]]
    )
    unknown = MarginalUnion().costs(situation._replace(step_times=[STEP_TIME, STEP_TIME]))
    assert unknown == MarginalUnion().costs(
        situation._replace(step_times=[STEP_TIME, STEP_TIME], tokens=(), context=0)
    )
    assert law.scaled(2.0).per_token == 60e-9
    assert law.for_experts(64).per_token == 30e-9, "attention does not know how many experts there are"


@pytest.mark.slow
@given(situations())
def test_where_a_step_costs_the_same_whatever_it_does_it_is_jsq(situation):
    flat = StepTime(fixed=5e-3, per_expert=0.0, per_request=0.0, n_experts=128)
    situation = situation._replace(step_times=[flat] * len(situation.in_flight))
    assert choose(MarginalUnion(), *situation).position == choose(JSQ(), *situation).position


def test_the_prior_tells_idle_workers_apart_and_knows_no_fast_ones():
    outlook = Outlook([0.0, 0.0, 0.0], [8.0, 8.0, 8.0])
    policy = MarginalUnion(prior=0.23)
    assert (
        choose(
            policy, [0, 0, 0], 0, [0.2, 0.9, math.nan], outlook=outlook, step_times=[STEP_TIME] * 3
        ).position
        == 1
    )
    slow = STEP_TIME.scaled(2)
    alike = choose(
        policy, [3, 3], 0, [0.9, 0.9], outlook=Outlook([9.0, 9.0], [4.0, 4.0]), step_times=[slow, STEP_TIME]
    )
    assert alike.position == 1, "similarity that all share is no reason for the slow one"


def test_the_prior_draws_to_slow_engines_no_more_than_to_fast_ones():
    slow = STEP_TIME.scaled(3)
    situation = Situation(
        [3, 3],
        0,
        [0.9, 0.1],
        slots=[0, 1],
        outlook=Outlook([9.0, 9.0], [4.0, 4.0]),
        step_times=[slow, STEP_TIME],
    )
    drawn = np.subtract(MarginalUnion().costs(situation), MarginalUnion(prior=0.5).costs(situation))
    worth = 0.5 * (1 - (9 / 128) ** 2) * 128 * 2 * STEP_TIME.per_expert * 0.4
    assert drawn == pytest.approx([worth, -worth])
    charged = situation._replace(tolls=[0.8, 0.0])
    assert MarginalUnion(prior=0.5).costs(charged) == pytest.approx(MarginalUnion().costs(charged))
    full = situation._replace(outlook=Outlook([128.0, 128.0], [0.0, 0.0]))
    assert MarginalUnion(prior=0.5).costs(full) == MarginalUnion().costs(full), "it fades as unions fill up"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonsense_is_no_reason_to_crowd_or_to_crash(bad):
    outlook = Outlook([20.0, bad, 20.0], [5.0, 5.0, bad])
    assert choose(MarginalUnion(), [3, 4, 2], 0, outlook=outlook, step_times=[STEP_TIME] * 3).position == 2


def test_whoever_is_thought_to_cost_nothing_does_not_get_everything():
    free = StepTime(0.0, 0.0, 0.0, 128)
    loads = [0, 0, 0, 0]
    for turn in range(400):
        choice = choose(
            MarginalUnion(),
            loads,
            turn,
            outlook=Outlook([20.0] * 4, [5.0] * 4),
            step_times=[free, *[STEP_TIME] * 3],
        )
        loads[choice.position] += 1
    assert max(loads) <= 3 * 101


def test_without_an_outlook_it_is_jsq():
    assert choose(MarginalUnion(), [3, 1, 2], 0) == choose(JSQ(), [3, 1, 2], 0)


def test_bad_parameters_name_themselves():
    with pytest.raises(ValueError, match=r"prior: expected 0..1, got 2"):
        make_policy("MarginalUnion", prior=2.0)
    for name in ("MarginalUnion", "ELDR"):
        with pytest.raises(ValueError, match=r"max_load: expected at least 1, got 0.5"):
            make_policy(name, max_load=0.5)

"""Engines that draft: each step loads the experts of all tokens fed, and generates those that are accepted."""

import numpy as np
import pytest

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.drafts import NO_DRAFTS, Drafts
from eldr.simulate.engine import Limits
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Window, make_workload
from eldr_lab.synthetic.contenders import parse_contender

WINDOW = Window(0.0, 20.0, 0.0)


def test_a_step_uses_the_experts_of_all_tokens_that_it_feeds(population):
    fed = Drafts(1, 0.5).fed(population)
    np.testing.assert_allclose(np.exp(fed.logs), np.exp(population.logs) ** 2, rtol=1e-5)
    steps, pairs = population.steps, fed.steps
    assert pairs.shape == (len(steps), steps.shape[1] // 2, 2 * steps.shape[2])
    np.testing.assert_array_equal(pairs[3, 1], np.concatenate((steps[3, 2], steps[3, 3])))
    assert NO_DRAFTS.fed(population) is population


@pytest.mark.parametrize("sampled", [False, True])
def test_drafts_load_more_experts_and_take_fewer_steps(population, step_time, sampled):
    found = {}
    for drafts in (NO_DRAFTS, Drafts(3, 0.5)):
        workload = make_workload(
            population, rate=5.0, window=WINDOW, seed=0, output_tokens=60, per_step=drafts.per_step
        )
        assert set(workload.tokens) == {60 if drafts is NO_DRAFTS else 24}
        pool = Pool((drafts.slowed(step_time),) * 4, Limits(), sampled, drafts)
        policy = parse_contender("JSQ").policy({})
        found[drafts.tokens] = simulate(pool, population, workload, WINDOW, policy).measures
    plain, drafted = found[0], found[3]
    assert drafted.active_per_token > plain.active_per_token
    assert drafted.batch < plain.batch
    longer = step_time.seconds(4 * drafted.batch, drafted.active_per_token) / step_time.seconds(
        plain.batch, plain.active_per_token
    )
    assert drafted.tpot_mean / plain.tpot_mean == pytest.approx(longer / 2.5, rel=0.05)


def test_learned_step_times_include_drafts():
    learned = Drafts(1, 0.8, timed=True)
    assert learned.slowed(QWEN3_30B_MI300X) == QWEN3_30B_MI300X
    assert Drafts(1, 0.8).slowed(QWEN3_30B_MI300X).per_request == 2 * QWEN3_30B_MI300X.per_request

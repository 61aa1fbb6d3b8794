"""Engines that draft: each step loads the experts of all tokens fed, and generates those that are accepted."""

import numpy as np

from eldr.core.step_time import QWEN3_30B_MI300X
from eldr.simulate.drafts import NO_DRAFTS, Drafts


def test_a_step_uses_the_experts_of_all_tokens_that_it_feeds(population):
    fed = Drafts(1, 0.5).fed(population)
    np.testing.assert_allclose(np.exp(fed.logs), np.exp(population.logs) ** 2, rtol=1e-5)
    assert NO_DRAFTS.fed(population) is population


def test_accepted_drafts_save_steps(population):
    assert set(NO_DRAFTS.steps(population)) == {60}
    assert set(Drafts(3, 0.5).steps(population)) == {24}


def test_learned_step_times_include_drafts():
    learned = Drafts(1, 0.8, timed=True)
    assert learned.slowed(QWEN3_30B_MI300X) == QWEN3_30B_MI300X
    assert Drafts(1, 0.8).slowed(QWEN3_30B_MI300X).per_request == 2 * QWEN3_30B_MI300X.per_request

"""Prefix caches."""

import numpy as np
import pytest

from eldr_lab.pool.prefix import BLOCK, PrefixCache


def test_whole_blocks_are_found_and_the_last_token_never():
    tokens = np.array([1, 16, 17, 40, 100])
    assert PrefixCache(1.0).found(tokens).tolist() == [0, 0, 16, 32, 96]
    assert PrefixCache(0.5).found(tokens).tolist() == [0, 0, 0, 16, 48]
    assert not PrefixCache(0.0).found(tokens).any()
    assert BLOCK == 16


def test_counted_prefixes_change_nothing_that_routers_see(population):
    assert PrefixCache(0.9).seen(population, 0) is population


def test_lost_counts_are_a_part_of_the_prompts_own(population):
    cache = PrefixCache(0.5, counted=False)
    seen = cache.seen(population, 0)
    assert np.array_equal(
        seen.prompt_tokens, population.prompt_tokens - cache.found(population.prompt_tokens)
    )
    assert (seen.prefill <= population.prefill).all()
    assert (seen.prefill <= seen.prompt_tokens[:, None, None]).all()
    share = seen.prefill.sum() / population.prefill.sum()
    assert share == pytest.approx(seen.prompt_tokens.sum() / population.prompt_tokens.sum(), rel=0.01)
    assert seen.logs is population.logs  # decode steps are what they are
    assert np.array_equal(cache.seen(population, 0).prefill, seen.prefill)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_one(share):
    with pytest.raises(ValueError, match="share: expected 0"):
        PrefixCache(share)

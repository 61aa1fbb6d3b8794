"""Which pulled prompts would lack a block, held against what vLLM's own managers keep and its attention sees."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core.single_type_kv_cache_manager import ChunkedLocalAttentionManager, SlidingWindowManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from eldr.engine.decode.windows import Windows

SHAPE = {"num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
LONGEST = 600


def sliding(window, block, **fields):
    return SlidingWindowSpec(block_size=block, sliding_window=window, **SHAPE, **fields)


def windows(*specs):
    return Windows(
        SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)])
    )


def cut(*specs):
    found = windows(*specs)
    return {tokens for tokens in range(1, LONGEST) if found.cut(tokens)}


def skipped(manager, tokens, **fields):
    """Return what vLLM's manager would not keep once so many tokens are computed."""
    return manager.get_num_skipped_tokens(SimpleNamespace(**fields), tokens)


@pytest.mark.parametrize("block", [1, 16, 32, 64, 128])
@pytest.mark.parametrize("window", [1, 50, 64, 128, 129])
@pytest.mark.parametrize("extra", [0, 1, 3])
def test_a_prompt_is_cut_where_vllm_drops_a_block_that_its_last_token_sees(window, block, extra):
    def dropped(tokens):
        left = skipped(SlidingWindowManager, tokens, sliding_window=window, extra_retained_tokens=extra)
        return left // block * block  # whole blocks only

    lacking = {n for n in range(1, LONGEST) if dropped(n) > max(0, n - window)}
    assert cut(sliding(window, block, extra_retained_tokens=extra)) == lacking
    if not extra and block < LONGEST // 2:
        assert lacking, "some are"


def test_chunks_of_attention_end_where_a_prompt_does():
    def dropped(tokens):
        return skipped(ChunkedLocalAttentionManager, tokens, attention_chunk_size=64) // 16 * 16

    seen_from = [(n - 1) // 64 * 64 for n in range(LONGEST)]
    found = cut(ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64, **SHAPE))
    assert found == {n for n in range(1, LONGEST) if dropped(n) > seen_from[n]} == set(range(64, LONGEST, 64))


def test_layers_that_see_all_of_a_prompt_lack_nothing():
    """Those too whose window vLLM leaves to the kernel, as ``--disable-hybrid-kv-cache-manager`` has it."""
    assert not cut(FullAttentionSpec(block_size=16, **SHAPE))
    assert not cut(FullAttentionSpec(block_size=16, sliding_window=64, **SHAPE))


def test_every_group_and_every_shape_counts():
    full, narrow, wide = FullAttentionSpec(block_size=32, **SHAPE), sliding(64, 16), sliding(100, 16)
    inner = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": narrow, "b": narrow})
    assert cut(full, narrow, wide) == cut(narrow) | cut(wide)
    assert cut(full, inner) == cut(narrow)

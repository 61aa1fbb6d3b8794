"""Which group of KV blocks is counted, of vLLM's own kinds."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from eldr.engine.capture.cache import CacheGroup, full_attention_group

SHAPE = {"num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
FULL = FullAttentionSpec(block_size=64, **SHAPE)
SLIDING = SlidingWindowSpec(block_size=32, sliding_window=64, **SHAPE)


def groups(*specs):
    return SimpleNamespace(
        kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    )


def test_the_first_group_with_full_attention_and_its_own_block_size():
    assert full_attention_group(groups(SLIDING, FULL, FULL)) == CacheGroup(1, "layer1", 64)


def test_layers_of_one_kind_and_several_shapes():
    wide = FullAttentionSpec(block_size=64, **{**SHAPE, "num_kv_heads": 2})
    both = UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={"a": FULL, "b": wide})
    assert full_attention_group(groups(SLIDING, both)).index == 1
    mixed = UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={"a": FULL, "b": SLIDING})
    assert full_attention_group(groups(mixed, FULL)).index == 1


def test_a_model_that_forgets_the_beginning_of_every_prompt_is_refused():
    with pytest.raises(ValueError, match=r"needs a layer with full attention.*found SlidingWindowSpec"):
        full_attention_group(groups(SLIDING))

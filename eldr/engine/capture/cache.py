"""The KV cache group whose blocks cover every token of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

from eldr.engine.errors import UnsupportedEngineError


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """A full-attention group.

    Attributes
    ----------
    index : int
        Its number among the groups, and so in a request's block ids.
    layer_name : str
        One of its layers, under which a forward pass keeps the group's slot mapping.
    """

    index: int
    layer_name: str
    block_size: int


def full_attention_group(kv_cache_config: Any) -> CacheGroup:
    """Return the first full-attention group; sliding windows forget the beginning of a prompt; ValueError if there is none."""
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        inner = getattr(spec, "kv_cache_specs", None)  # layers of one type, but of several shapes
        specs = list(inner.values()) if inner else [spec]
        if all(isinstance(item, FullAttentionSpec | MLAAttentionSpec) for item in specs):
            return CacheGroup(index, group.layer_names[0], spec.block_size)
    kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in kv_cache_config.kv_cache_groups)
    raise UnsupportedEngineError(
        f"ELDR needs a layer with full attention, whose KV blocks cover the whole prompt; found {kinds}"
    )

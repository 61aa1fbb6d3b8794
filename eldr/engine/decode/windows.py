"""Prompts of which vLLM pulls too little: a block that their last token sees through a sliding window is left out.

A decode engine that pulls N tokens keeps the blocks that token N sees, but computes token N - 1 once more. Where that one sees a
block more, vLLM 0.31 to 0.33 read an empty block: the answer is wrong, without an error.

References
----------
.. [1] docs/upstream/sliding-windows.md: the report, and a script that shows it.
.. [2] vLLM, ``vllm/v1/core/single_type_kv_cache_manager.py``: ``get_num_skipped_tokens``.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec


class Windows:
    """The groups of layers that forget the beginning of a prompt.

    Parameters
    ----------
    kv_cache_config : vllm.v1.kv_cache_interface.KVCacheConfig
    """

    def __init__(self, kv_cache_config: Any) -> None:
        self._specs = [
            spec
            for group in kv_cache_config.kv_cache_groups
            for spec in _specs(group.kv_cache_spec)
            if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec)
        ]

    def cut(self, tokens: int) -> bool:
        """Return whether a pulled prompt of that many tokens lacks a block."""
        return any(
            _left_out(spec, tokens) // spec.block_size > _unseen(spec, tokens - 1) // spec.block_size
            for spec in self._specs
        )


def _specs(spec: Any) -> list[Any]:
    inner = getattr(spec, "kv_cache_specs", None)  # layers of one type, but of several shapes
    return list(inner.values()) if inner else [spec]


def _unseen(spec: Any, token: int) -> int:
    """Return how many tokens at the beginning that token does not see."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, token - int(spec.sliding_window) + 1)
    chunk = int(spec.attention_chunk_size)
    return token // chunk * chunk


def _left_out(spec: Any, computed: int) -> int:
    """Return how many tokens vLLM does not keep; drafting layers of some kinds have it keep more than it must."""
    return max(0, _unseen(spec, computed) - getattr(spec, "extra_retained_tokens", 0))

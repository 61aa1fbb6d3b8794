"""What a step of vLLM's scheduler runs, and what a request asks of the transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def transfer_of(request: Any) -> dict[str, Any]:
    """Return a request's ``kv_transfer_params``; none where they are no object: clients can send anything as ``vllm_xargs``."""
    found = request.kv_transfer_params
    return found if isinstance(found, dict) else {}


def scheduled(output: Any) -> list[tuple[str, int, int]]:
    """Return id, tokens computed before and tokens in the step of every scheduled request."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [(request, computed[request], tokens) for request, tokens in output.num_scheduled_tokens.items()]


def blocks_in(output: Any, group: int) -> Callable[[str], list[int]]:
    """Return what tells all blocks that a request has in a KV cache group after the step was scheduled, in order."""

    def blocks_of(request: str) -> list[int]:
        blocks: list[int] = output.kv_connector_block_state.get_block_ids(request)[group]
        return blocks

    return blocks_of

"""What a step of vLLM's scheduler runs, and what a request asks of the transport."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import isfinite
from typing import Any

logger = logging.getLogger("vllm.eldr")  # where the rest of the plug-in logs; this module has no vLLM


def transfer_of(request: Any) -> dict[str, Any]:
    """Return a request's ``kv_transfer_params``; none where they are no object: clients can send anything as ``vllm_xargs``."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}


def connectors_of(transfer: Any) -> list[str]:
    """Return the names of an engine's KV connectors, from its ``kv_transfer_config``."""
    if transfer is None:
        return []
    children = transfer.kv_connector_extra_config.get("connectors", [])
    return [transfer.kv_connector, *(child.get("kv_connector") for child in children)]


def is_pulled(request: Any) -> bool:
    """Return whether another engine will pull a request's KV; this one answers with a token at most."""
    return bool(transfer_of(request).get("do_remote_decode"))


_REMOTE = {"remote_engine_id": str, "remote_request_id": str, "remote_host": str, "remote_port": int}
_COUNTS = ("tp_size", "dcp_size", "pp_size", "remote_block_size", "remote_num_tokens")
_MOST_PORT = 65_535
_MOST = 1 << 31
"""Of blocks, and of whatever is counted."""


def drop_malformed(request: Any) -> None:
    """Take ``kv_transfer_params`` away that NIXL cannot read: it would end the engine, with all that runs there.

    The request is then served as one without a prefill result. Clients that reach an engine directly can send anything.
    """
    params = request.kv_transfer_params
    if params is None or (isinstance(params, dict) and _is_sound(params)):
        return
    request.kv_transfer_params = None
    logger.warning(
        "ELDR: request %s has malformed kv_transfer_params; it is prefilled here", request.request_id
    )


def _is_sound(params: dict[str, Any]) -> bool:
    """Whether they ask for a pull with all that it reads, for a result to pull and nothing beside it, or for nothing."""
    if params.get("do_remote_prefill"):
        return not params.get("do_remote_decode") and _is_complete(params)
    return not params.get("do_remote_decode") or all(
        params.get(name) is None for name in ("remote_block_ids", *_REMOTE, *_COUNTS)
    )


def _is_complete(params: dict[str, Any]) -> bool:
    """Whether everything is there that a pull reads, and has its type."""
    groups, expiry = params.get("remote_block_ids"), params.get("remote_blocks_expiry_time")
    return (
        all(type(params.get(name)) is kind for name, kind in _REMOTE.items())
        and 0 < params["remote_port"] <= _MOST_PORT
        and all(params.get(name) is None or _is_count(params[name]) for name in _COUNTS)
        and (expiry is None or (type(expiry) in (int, float) and isfinite(expiry)))
        and isinstance(groups, list | tuple)
        and bool(groups)
        and all(
            isinstance(group, list | tuple) and all(type(at) is int and 0 <= at < _MOST for at in group)
            for group in groups
        )
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MOST


def scheduled(output: Any) -> list[tuple[str, int, int]]:
    """Return id, tokens computed before and tokens in the step of every scheduled request."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [(request, computed[request], tokens) for request, tokens in output.num_scheduled_tokens.items()]


def blocks_in(output: Any, group: int) -> Callable[[str], list[int]]:
    """Return a function from a request to its blocks in a KV cache group after the step was scheduled, in order."""

    def blocks_of(request: str) -> list[int]:
        blocks: list[int] = output.kv_connector_block_state.get_block_ids(request)[group]
        return blocks

    return blocks_of

"""Makes the last rank of an expert-parallel engine differ from the others.

A file in the folder says what: ``capture`` before the start, no room for
what it would count with; ``maps``, after the next step two experts have exchanged their places, in one layer's map, as if a rank
had missed a rearrangement.
"""

from __future__ import annotations

from typing import Any

from eldr_test_connector import Idle
from vllm.distributed.eplb.eplb_state import EplbState
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.parallel_state import get_ep_group


def _no_room(*_: Any) -> None:
    raise RuntimeError("no room")


class Saboteur(Idle):
    """Changes what the last rank has in hand."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._last = role == KVConnectorRole.WORKER and get_ep_group().is_last_rank
        if self._last and (self._folder / "capture").exists():
            from eldr.engine.capture import routing

            routing._Capturer = _no_room

        if self._last and role == KVConnectorRole.WORKER:
            self._miss_a_move()

    def _miss_a_move(self) -> None:
        """Have two experts exchange their places when EPLB next moves experts on all ranks."""
        step, asked = EplbState.step, self._folder / "maps"

        def stepped(state: EplbState, *args: Any, **kwargs: Any) -> None:
            layers = self._vllm_config.compilation_config.static_forward_context.values()
            maps = next(layer.router.eplb_state for layer in layers if hasattr(layer, "router"))
            table = maps.logical_to_physical_map
            before = table._version
            step(state, *args, **kwargs)
            if asked.exists() and table._version != before:
                asked.unlink()
                table[[0, 1], 0] = table[[1, 0], 0]

        EplbState.step = stepped

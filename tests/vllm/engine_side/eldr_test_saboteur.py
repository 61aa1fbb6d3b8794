"""A KV connector that moves nothing: it makes the last rank of an expert-parallel engine differ from the others.

It runs inside the engine, as a child of its MultiConnector, and only where a test asked for it. A file in the folder
``ELDR_TEST_GATE`` says what: ``version`` before the start, another version of ELDR; ``maps``, from the next step on two experts
have exchanged their places, in one layer's map, as if a rank had missed a rearrangement.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_ep_group


class Saboteur(KVConnectorBase_V1, SupportsHMA):
    """Changes what the last rank has in hand."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._folder = Path(os.environ["ELDR_TEST_GATE"])
        self._last = role == KVConnectorRole.WORKER and get_ep_group().is_last_rank
        if self._last and (self._folder / "version").exists():
            import eldr

            eldr.__version__ = "0.0.0"

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._last and (self._folder / "maps").exists():
            (self._folder / "maps").unlink()
            layers = self._vllm_config.compilation_config.static_forward_context.values()
            maps = next(layer.router.eplb_state for layer in layers if hasattr(layer, "router"))
            table = maps.logical_to_physical_map
            table[[0, 1], 0] = table[[1, 0], 0]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

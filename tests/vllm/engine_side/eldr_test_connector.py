"""A KV connector that moves nothing: what tests put into a real engine derives from it.

It runs inside the engine, as a child of its MultiConnector, and only where a test asked for it. Tests speak to it by files in
the folder ``ELDR_TEST_GATE``. Tests without an engine (``tests/engine``) derive their transports from it, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class Idle(KVConnectorBase_V1, SupportsHMA):
    """Does nothing at every hook that a connector must have."""

    @property
    def _folder(self) -> Path:
        return Path(os.environ["ELDR_TEST_GATE"])

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

"""Says which scheduler and which model runner an engine really has, in a file for each."""

from __future__ import annotations

import gc
from typing import Any

from eldr_test_connector import Idle
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

CLASSES = {
    KVConnectorRole.SCHEDULER: (
        "scheduler",
        {"vllm.v1.core.sched.async_scheduler": "asynchronous", "vllm.v1.core.sched.scheduler": "synchronous"},
    ),
    KVConnectorRole.WORKER: (
        "runner",
        {"vllm.v1.worker.gpu.model_runner": "V2", "vllm.v1.worker.gpu_model_runner": "V1"},
    ),
}
"""By the module of the first class that a scheduler, or a model runner, derives from."""


class Witness(Idle):
    """Looks, when it is made, for whom it is made."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        what, kinds = CLASSES[role]
        bases = ([base.__module__ for base in type(one).__mro__] for one in gc.get_objects())
        found = {
            next(kind for module, kind in kinds.items() if module in one)
            for one in bases
            if kinds.keys() & one
        }
        (self._folder / what).write_text(" ".join(sorted(found)))

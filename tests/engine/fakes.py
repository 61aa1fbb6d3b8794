"""What needs a model, given by the test instead: the routing and the slots of a step."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LAYERS = 2
BLOCK, BLOCKS, EXPERTS, TOP_K = 4, 40, 6, 2
MODEL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}


REMOTE = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]], "remote_engine_id": "p",
    "remote_request_id": "there", "remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 1, "remote_num_tokens": 10,
}  # fmt: skip
"""What a prefill engine hands over, as NIXL reads it."""


def engine_config(folder: Path, transfer: Any) -> Any:
    """Return vLLM's configuration of a small engine with these connectors; a folder for the model's is needed."""
    from vllm.engine.arg_utils import EngineArgs

    (folder / "config.json").write_text(json.dumps(MODEL))
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=80,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=BLOCK,
        kv_transfer_config=transfer,
    )
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


def transfer_config(role: str, *connectors: str, on_failure: str = "fail") -> Any:
    """Return vLLM's configuration of these connectors beside each other."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role=role,
        kv_load_failure_policy=on_failure,
        kv_connector_extra_config={
            "connectors": [{"kv_connector": name, "kv_role": role} for name in connectors]
        },
    )


def worker_connector(worker: Any, *, reports: bool = False) -> Any:
    """Return our connector of a worker's process, around its half."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from eldr.engine.counting import Counting
    from eldr.engine.decode.deadline import PullWatch
    from eldr.engine.hooks.connector import EldrConnector
    from eldr.engine.metrics import EngineStats

    found = EldrConnector.__new__(EldrConnector)
    found._role, found._scheduler, found._worker = KVConnectorRole.WORKER, None, worker
    found._counting, found._prompts, found._reports = Counting("activations"), False, []
    found._late, found._reports_late = EngineStats(), reports
    found._watch = PullWatch(found._late.add_late_pull)
    return found


class Prometheus:
    """What Prometheus sees of an engine."""

    def __init__(self, config: Any = None, make: Any = None) -> None:
        from eldr.engine.metrics import EnginePromMetrics

        self._registry = CollectorRegistry()
        kinds = (Gauge, Counter, Histogram)
        types = {kind: functools.partial(kind, registry=self._registry) for kind in kinds}
        config = config or SimpleNamespace(
            kv_transfer_config=None,
            model_config=SimpleNamespace(get_num_experts=lambda: 16),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        )
        self._metrics = (make or EnginePromMetrics)(config, types, ["engine"], {0: ["0"]})
        self.observe = self._metrics.observe

    def seen(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample."""
        return self._registry.get_sample_value(name, {"engine": "0"} | labels)


def scheduler_of(config: Any, window: int = 0, *, asynchronous: bool = False) -> Any:
    """Return vLLM's scheduler with a KV cache of one full-attention group, and one of a sliding window if there is one."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
    if window:
        groups.append(KVCacheGroupSpec(["sliding"], SlidingWindowSpec(sliding_window=window, **shape)))
    caches = KVCacheConfig(config.cache_config.num_gpu_blocks, [], groups)
    kind = AsyncScheduler if asynchronous else Scheduler
    return kind(config, caches, StructuredOutputManager(config), block_size=BLOCK, log_stats=True)


def maps_of(physical_to_logical: Sequence[int]) -> Any:
    """Return an arrangement of experts as vLLM has it."""
    experts = max(physical_to_logical) + 1
    table, count = torch.full((experts, 1024), -1), torch.zeros(experts, dtype=torch.int64)
    for place, expert in enumerate(physical_to_logical):
        table[expert, count[expert]] = place
        count[expert] += 1
    return SimpleNamespace(logical_to_physical_map=table, logical_replica_count=count)


class Capture:
    """In place of ``RoutingCapture``: tests set ``ids``, of shape (tokens, layers, top k)."""

    n_layers: ClassVar[int] = LAYERS
    device: ClassVar[torch.device] = torch.device("cpu")
    union: ClassVar[None] = None
    ids: ClassVar[torch.Tensor]

    def __init__(self, *_: object) -> None:
        pass

    def share(self) -> None:
        """Leave everything as it is."""

    def begin(self, requests: int = 0) -> None:
        """Leave everything as it is."""

    def clear(self) -> None:
        """Leave everything as it is."""

    def end(self, *, failed: bool = False) -> None:
        """Leave everything as it is."""

    def drafted(self) -> None:
        """Return nothing: no layer drafts."""

    def nothing(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a token that lies nowhere."""
        return torch.full((1, LAYERS, TOP_K), -1, dtype=torch.int32), torch.tensor([-1])

    def expert_ids(self, n_tokens: int) -> torch.Tensor:
        """Return the routing of the first tokens."""
        return self.ids[:n_tokens]


class Slots:
    """In place of ``StepSlots``: tests set ``slots``, None for a step that does not tell."""

    slots: ClassVar[torch.Tensor | None] = None

    def __init__(self, *_: object) -> None:
        pass

    def bind(self) -> None:
        """Leave everything as it is."""

    def load(self, attention_metadata: object) -> None:
        """Leave everything as it is."""

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return self.slots is not None

    def take(self) -> torch.Tensor | None:
        """Return the slots."""
        return self.slots


class Ranks:
    """A group whose ranks are threads; each adds with the others, as a collective does."""

    def __init__(self, n: int) -> None:
        self._barrier = threading.Barrier(n, timeout=20)
        self._said: list[Any] = [None] * n

    def add(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the sum as a rank calls it."""
        return lambda tensor: torch.stack(self.say(rank, tensor)).sum(0, dtype=tensor.dtype)

    def gather(self, rank: int) -> Callable[..., torch.Tensor]:
        """Return the gathering of all ranks' rows as a rank calls it."""
        return lambda tensor, dim: torch.cat(self.say(rank, tensor), dim)

    def say(self, rank: int, said: Any) -> list[Any]:
        """Return what all ranks say, once they have."""
        self._said[rank] = said.clone() if isinstance(said, torch.Tensor) else said
        self._barrier.wait()
        every = list(self._said)
        self._barrier.wait()
        return every


def on_all(found: Sequence[Any], ask: Callable[[int, Any], Any]) -> list[Any]:
    """Call on all ranks at once; return what each says, or raises."""
    with ThreadPoolExecutor(len(found)) as pool:
        asked = [pool.submit(ask, rank, balance) for rank, balance in enumerate(found)]
        return [one.exception() or one.result() for one in asked]

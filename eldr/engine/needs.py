"""What the plug-in takes from vLLM, and what of it an installed vLLM lacks. The gate at an engine's start reads this, and so do tests.

Names and parameters are all that can be looked at before an engine runs. Whether they still mean the same is what tests of real
engines tell; they ran with the releases in :data:`TESTED`.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTED = ("0.31", "0.32", "0.33")
"""Minor releases that the real-engine tests ran on, the oldest first; see ``docs/reference/engine-plugin.md``."""

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vllm.config:ParallelConfig": (
        "pipeline_parallel_size",
        "tensor_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "data_parallel_size",
        "data_parallel_rank",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
        "enable_expert_parallel",
        "enable_eplb",
        "eplb_config",
        "enable_elastic_ep",
        "enable_fault_tolerance",
        "all2all_backend",
        "use_sequence_parallel_moe",
        "use_ubatching",
        "enable_dbo",
        "ubatch_size",
    ),
    "vllm.config:CompilationConfig": (
        "mode",
        "cudagraph_mode",
        "static_forward_context",
        "static_all_moe_layers",
    ),
    "vllm.config:DeviceConfig": ("device_type",),
    "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector": ("post_forward",),
    "vllm.config:SchedulerConfig": ("max_num_seqs", "max_num_batched_tokens"),
    "vllm.config:VllmConfig": (
        "speculative_config",
        "num_speculative_tokens",
        "use_v2_model_runner",
        "kv_transfer_config",
        "lora_config",
        "model_config",
        "scheduler_config",
        "parallel_config",
        "compilation_config",
        "device_config",
    ),
    "vllm.config:KVTransferConfig": ("engine_id", "kv_connector", "kv_role", "kv_connector_extra_config"),
    "vllm.config:ModelConfig": (
        "model",
        "get_num_experts",
        "get_num_experts_per_tok",
        "get_total_num_hidden_layers",
        "enable_sleep_mode",
    ),
    "vllm.config:SpeculativeConfig": ("method",),
    "vllm.config.parallel:EPLBConfig": ("num_redundant_experts", "window_size"),
    "vllm.v1.core.sched.output:KVConnectorBlockState": ("get_block_ids",),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "preempted_req_ids",
        "kv_connector_block_state",
        "scheduled_spec_decode_tokens",
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("req_id", "num_computed_tokens"),
    "vllm.v1.core.sched.output:CachedRequestData": ("req_ids", "num_computed_tokens"),
    "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorTransferResults": ("failed_recving",),
    "vllm.v1.outputs:KVConnectorOutput": ("finished_recving", "kv_connector_worker_meta"),
    "vllm.v1.kv_cache_interface:KVCacheConfig": ("kv_cache_groups", "num_blocks"),
    "vllm.v1.kv_cache_interface:KVCacheGroupSpec": ("kv_cache_spec", "layer_names"),
    "vllm.v1.kv_cache_interface:KVCacheSpec": ("block_size",),
    "vllm.v1.kv_cache_interface:SlidingWindowSpec": ("sliding_window",),
    "vllm.v1.kv_cache_interface:ChunkedLocalAttentionSpec": ("attention_chunk_size",),
    "vllm.forward_context:ForwardContext": ("slot_mapping",),
    "vllm.forward_context:DPMetadata": ("num_tokens_across_dp_cpu",),
    "vllm.v1.request:Request": (
        "request_id",
        "status",
        "resumable",
        "block_hashes",
        "num_prompt_tokens",
        "num_output_tokens",
        "kv_transfer_params",
    ),
    "vllm.distributed.eplb.eplb_state:EplbLayerState": (
        "logical_to_physical_map",
        "logical_replica_count",
        "expert_load_view",
    ),
    "vllm.distributed.eplb.eplb_state:EplbState": ("step",),
    "vllm.distributed.eplb.policy:DefaultEplbPolicy": ("rebalance_experts_hierarchical",),
    "vllm.distributed.parallel_state:GroupCoordinator": (
        "all_reduce",
        "cpu_group",
        "is_first_rank",
        "rank_in_group",
        "world_size",
    ),
    f"{_FUSED_MOE}.layer:MoERunner": (
        "layer_id",
        "layer_name",
        "_quant_method",
        "router",
        "routed_experts",
        "is_monolithic",
    ),
    f"{_FUSED_MOE}.routed_experts:RoutedExperts": ("local_num_experts",),
    f"{_FUSED_MOE}.router.base_router:BaseRouter": ("eplb_state",),
    f"{_FUSED_MOE}.router.fused_topk_router:FusedTopKRouter": ("top_k",),
    f"{_FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase": ("is_monolithic", "moe_kernel"),
    f"{_FUSED_MOE}.routed_experts_capturer:RoutedExpertsCapturer": ("device_buffer", "shape_per_token"),
}
"""Class to what is read of its objects."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    f"{_FUSED_MOE}.routed_experts:RoutedExperts.forward_monolithic": ("x", "router_logits", "input_ids"),
    f"{_FUSED_MOE}.routed_experts_capturer:RoutedExpertsCapturer.capture": ("layer_id", "topk_ids"),
}
"""Method that one of ours replaces to the parameters it has."""


def version() -> str:
    """Return the installed vLLM's."""
    return str(importlib.import_module("vllm").__version__)


def tested() -> bool:
    """Tell whether it belongs to a release that the tests of real engines ran on."""
    return version().startswith(tuple(f"{release}." for release in TESTED))


def drafts_first() -> bool:
    """Tell whether model runner V2 drafts before it hands a step over to connectors, which tell where its tokens lie then."""
    hand_over = _find("vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.post_forward")
    return "defer_finalize" not in _named(hand_over)


@functools.cache
def missing() -> tuple[str, ...]:
    """Return what the installed vLLM lacks, or has in another form, by name. Looked at once in a process."""
    return tuple(filter(None, (*map(_gone, imports()), *_attributes(), *_parameters())))


def imports() -> list[str]:
    """Return every ``module:name`` that the plug-in imports from vLLM."""
    found = set()
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "from vllm" in text else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return sorted(found)


def _attributes() -> Iterator[str]:
    for target, names in ATTRIBUTES.items():
        if gone := _gone(target):
            yield gone
            continue
        cls = _find(target)
        known = {n for base in cls.__mro__ for n in (*vars(base), *vars(base).get("__annotations__", ()))}
        if unknown := set(names) - known:
            yield from (f"{target}.{name} is gone" for name in sorted(unknown - assigned(cls)))


def assigned(cls: type) -> set[str]:
    """Return the attributes that the methods of a class, and of its bases in vLLM, give its objects."""
    return {
        after.argval
        for base in cls.__mro__
        if base.__module__.startswith("vllm.")
        for method in vars(base).values()
        if (code := getattr(inspect.unwrap(method), "__code__", None)) is not None
        for before, after in itertools.pairwise(dis.get_instructions(code))
        if after.opname == "STORE_ATTR" and before.argrepr.rpartition(", ")[2] == "self"
    }


def _parameters() -> Iterator[str]:
    for target, ours in PARAMETERS.items():
        yield _gone(target) or _unlike(target, ours, _named(_find(target)))


def different(ours: type) -> list[str]:
    """Return which hooks of a class of ours its bases in vLLM lack, or have with other parameters."""
    found = []
    for hook in (name for name in vars(ours) if not name.startswith("_")):
        base = next((base for base in ours.__mro__[1:] if hook in vars(base)), None)
        if base is None:
            found.append(f"{hook}, a hook, is gone")
        elif not isinstance(vars(base)[hook], property):
            found.append(
                _unlike(f"{base.__name__}.{hook}", _named(getattr(ours, hook)), _named(getattr(base, hook)))
            )
    return [text for text in found if text]


def unmet(ours: type) -> list[str]:
    """Return what the bases in vLLM of a class of ours leave to it, and it does not have."""
    return [
        f"{base.__name__}.{name} is new, and must be supplied"
        for base in ours.__mro__[1:]
        for name, method in vars(base).items()
        if "NotImplementedError" in getattr(getattr(method, "__code__", None), "co_names", ())
        or getattr(method, "__isabstractmethod__", False)
        if inspect.getattr_static(ours, name) is method
    ]


def _gone(target: str) -> str:
    """Return what of ``module:name`` is not there; empty if it is."""
    try:
        _find(target)
    except ImportError as error:
        return str(error)
    except AttributeError:
        return f"{target} is gone"
    return ""


def _find(target: str) -> Any:
    module, _, path = target.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _named(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name not in {"self", "cls"})


def _unlike(name: str, ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Return in what two lists of parameters differ; empty if they do not."""
    if ours == theirs:
        return ""
    return f"{name} takes ({', '.join(theirs)}) instead of ({', '.join(ours)})"

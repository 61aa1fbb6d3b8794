"""What the plug-in takes from vLLM exists in the installed version, with the parameters that it uses."""

import ast
import contextlib
import dis
import importlib
import inspect
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm

from eldr.engine import metrics, needs
from eldr.engine.capture import recompute
from eldr.engine.hooks import connector, endpoint

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
READ = {
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
    f"{FUSED_MOE}.layer:MoERunner": (
        "layer_id",
        "layer_name",
        "_quant_method",
        "router",
        "routed_experts",
        "is_monolithic",
        "moe_config",
    ),
    f"{FUSED_MOE}.config:FusedMoEConfig": ("num_logical_experts", "experts_per_token", "device"),
    f"{FUSED_MOE}.routed_experts:RoutedExperts": ("local_num_experts",),
    f"{FUSED_MOE}.router.base_router:BaseRouter": ("eplb_state",),
    f"{FUSED_MOE}.router.fused_topk_router:FusedTopKRouter": ("top_k",),
    f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase": ("is_monolithic", "moe_kernel"),
    f"{FUSED_MOE}.routed_experts_capturer:RoutedExpertsCapturer": ("device_buffer", "shape_per_token"),
}
"""Class to what the plug-in reads of its objects: a name that is gone ends counting."""


def assigned(cls):
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


@pytest.mark.parametrize(("target", "names"), READ.items(), ids=[target.partition(":")[2] for target in READ])
def test_what_the_plug_in_reads_is_there(target, names):
    module, _, name = target.partition(":")
    cls = getattr(importlib.import_module(module), name)
    known = {each for base in cls.__mro__ for each in (*vars(base), *vars(base).get("__annotations__", ()))}
    assert set(names) <= known | assigned(cls)


def test_the_installed_release_is_one_that_is_said_to_be_tested():
    assert needs.tested()


def test_the_gate_finds_everything_in_it():
    assert needs.missing() == ()
    assert needs.different(connector.EldrConnector) == []
    for ours in (connector.EldrConnector, metrics.EngineStats, metrics.EnginePromMetrics):
        assert needs.unmet(ours) == []


def test_the_endpoint_satisfies_vllms_protocol():
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(endpoint.ActivationsEndpoint(), EndpointPlugin)


def test_an_attribute_that_nothing_sets_is_not_taken_for_one():
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    names = assigned(MoERunner)
    assert "router" in names
    assert "device_buffer" not in names
    assert "dtype" not in names  # read from others, never set


def test_kernels_that_are_known_by_name_exist_and_still_do_not_show_their_routing():
    folder = Path(vllm.__file__).parent / "model_executor/layers/fused_moe/experts"
    found = {
        node.name: node
        for path in folder.glob("aiter_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for name in recompute.HIGHEST_FIRST:
        defined = [f.name for f in found[name].body if isinstance(f, ast.FunctionDef)]
        assert "apply" in defined
        assert "supports_routing_replay_capture" not in defined


def test_the_method_that_is_replaced_where_a_kernel_routes_inside_itself_is_called_as_ours_is():
    (call,) = [
        node
        for node in ast.walk(source("model_executor/layers/fused_moe/runner/moe_runner.py"))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".forward_monolithic")
    ]
    assert ast.unparse(call.func) == "self.routed_experts.forward_monolithic"
    assert not call.args
    assert {k.arg: ast.unparse(k.value) for k in call.keywords} == {
        "x": "hidden_states",
        "router_logits": "router_logits",
        "input_ids": "input_ids",
    }


# Triton kernels of Model Runner V2 need a GPU to run, even to be imported; its source is what can be looked at here.


def source(module):
    """Return the syntax tree of a module of vLLM that cannot be imported here."""
    return ast.parse(Path(vllm.__file__).parent.joinpath(*module.split("/")).read_text())


def calls(tree):
    """Return every call below a node as text, in the order of lines."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(node) for node in sorted(found, key=lambda node: (node.lineno, node.col_offset))]


def position(found, beginning):
    """Return where a call stands that begins so; there must be one."""
    (index,) = [i for i, call in enumerate(found) if call.startswith(beginning)] or [None]
    assert index is not None, f"vLLM does not call {beginning}... there any more"
    return index


def function(tree, name):
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found


def forward_contexts(tree):
    """Return what runs inside each forward context that has a slot mapping."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            opened = calls(ast.Module([ast.Expr(item.context_expr) for item in node.items], []))
            if any(c.startswith("set_forward_context(") and "slot_mapping=" in c for c in opened):
                yield opened, calls(ast.Module(node.body, []))


def test_model_runner_v2_passes_attention_metadata_where_a_full_graph_has_no_forward_context(monkeypatch):
    from vllm.v1.worker.gpu import kv_connector

    seen = []
    adapter = object.__new__(kv_connector.ActiveKVConnector)
    adapter.vllm_config, adapter._disabled = None, False
    adapter.kv_connector = SimpleNamespace(
        handle_preemptions=lambda _: None,
        bind_connector_metadata=lambda _: seen.append("bound"),
        start_load_kv=lambda _, **given: seen.append(given["attn_metadata"]),
    )
    monkeypatch.setattr(kv_connector, "set_forward_context", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(kv_connector, "get_forward_context", lambda: None)
    output = SimpleNamespace(kv_connector_metadata=object(), has_sync_kv_loads=True)
    batch = SimpleNamespace(idx_mapping=[], req_ids=[], num_tokens=0)
    adapter.pre_forward(scheduler_output=output, input_batch=batch, attn_metadata="metadata")
    assert seen == ["bound", "metadata"]
    steps = calls(function(source("v1/worker/gpu/model_runner.py"), "execute_model"))
    graph = position(steps, "self.cudagraph_manager.run_fullgraph(")
    before = [call for call in steps[:graph] if call.startswith("self.kv_connector.pre_forward(")]
    assert len(before) == 1
    assert before[0].endswith("attn_metadata=attn_metadata)")


def test_model_runner_v2_ends_the_forward_pass_for_a_connector_before_it_drafts():
    steps = calls(function(source("v1/worker/gpu/model_runner.py"), "execute_model"))
    ended = position(steps, "self.kv_connector.finish_forward(")
    assert (
        max(position(steps, f"self.{run}(") for run in ("model", "cudagraph_manager.run_fullgraph")) < ended
    )
    assert not [
        call for call in steps if call.startswith("self.speculator.propose(")
    ]  # sample_tokens does, later


def test_model_runner_v2_binds_inside_the_forward_context_where_there_is_one():
    ((_, inside),) = forward_contexts(function(source("v1/worker/gpu/model_runner.py"), "execute_model"))
    assert position(inside, "self.kv_connector.pre_forward(") < position(inside, "self.model(")


def test_model_runner_v1_binds_inside_the_forward_context_before_the_model_runs():
    ((opened, inside),) = forward_contexts(function(source("v1/worker/gpu_model_runner.py"), "execute_model"))
    position([*opened, *inside], "self.maybe_get_kv_connector_output(")
    position(inside, "self._model_forward(")
    lifecycle = calls(
        function(source("v1/worker/kv_connector_model_runner_mixin.py"), "_get_kv_connector_output")
    )
    assert position(lifecycle, "kv_connector.bind_connector_metadata(") < position(
        lifecycle, "kv_connector.build_connector_worker_meta("
    )


@pytest.mark.parametrize(
    ("backend", "metadata"),
    [
        ("flash_attn", "FlashAttentionMetadata"),
        ("flashinfer", "FlashInferMetadata"),
        ("triton_attn", "TritonAttentionMetadata"),
        ("rocm_attn", "RocmAttentionMetadata"),
        ("rocm_aiter_fa", "AiterFlashAttentionMetadata"),
    ],
)
def test_the_attention_metadata_of_gpus_has_the_slot_mapping_that_a_full_graph_step_is_counted_by(
    backend, metadata
):
    (found,) = [
        n for n in source(f"v1/attention/backends/{backend}.py").body if getattr(n, "name", "") == metadata
    ]
    assert "slot_mapping" in [n.target.id for n in found.body if isinstance(n, ast.AnnAssign)]


def test_eplb_changes_maps_in_its_step_and_every_forward_pass_ends_with_one():
    """Elastic expert parallelism changes them elsewhere, too, and is refused beside ``ELDR_BALANCE``."""
    eplb = source("distributed/eplb/eplb_state.py")

    def callers(name, tree=eplb):
        every = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        return {node.name for node in every if any(call.startswith(f"{name}(") for call in calls(node))}

    assert callers("_commit_eplb_maps") == {"rearrange"}
    assert callers("_commit_eplb_maps_for_layer") == {"_move_to_workspace"}
    assert callers("_move_to_workspace") == callers("self.rearrange") == {"step"}
    writers = {
        node.name
        for node in ast.walk(eplb)
        if isinstance(node, ast.FunctionDef)
        and any("logical_to_physical_map" in call and "copy_(" in call for call in calls(node))
    }
    assert writers == {"update_mapping"}, "of elastic expert parallelism"
    assert "logical_to_physical_map" not in ast.unparse(source("distributed/eplb/async_worker.py"))
    assert "self.eplb_state.step" in {
        call.partition("(")[0]
        for call in calls(function(source("v1/worker/gpu_model_runner.py"), "eplb_step"))
    }
    steps = callers("self.eplb_step", source("v1/worker/gpu_model_runner.py"))
    assert {"sample_tokens", "_dummy_run"} <= steps, steps

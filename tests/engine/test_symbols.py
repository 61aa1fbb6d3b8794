"""What the plug-in takes from vLLM exists in the installed version, with the parameters that it uses."""

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

import pytest
import vllm

from eldr.engine import metrics
from eldr.engine.capture import recompute
from eldr.engine.hooks import compatibility, connector, endpoint

ENGINE = Path(metrics.__file__).parent
FUSED_MOE = "vllm.model_executor.layers.fused_moe"


def imports():
    for path in sorted(ENGINE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                yield from ((str(path.relative_to(ENGINE)), node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize(("file", "module", "name"), sorted(set(imports())))
def test_every_import_from_vllm_resolves(file, module, name):
    assert hasattr(importlib.import_module(module), name), f"{file}: {module}.{name} is gone"


def test_the_installed_version_is_one_that_is_supported():
    assert vllm.__version__.startswith(compatibility.SUPPORTED_VLLM)


_NONE = compile("", "", "exec")
HOOKS = [name for name in vars(connector.EldrConnector) if not name.startswith("_")]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_still_exists_with_our_parameters(hook):
    bases = connector.EldrConnector.__mro__[1:]
    inherited = next((getattr(base, hook) for base in bases if hook in vars(base)), None)
    assert inherited is not None, f"vLLM never calls {hook}"
    if isinstance(inherited, property):
        return
    ours, theirs = (
        list(inspect.signature(f).parameters) for f in (getattr(connector.EldrConnector, hook), inherited)
    )
    named = [p for p in theirs if p not in ("self", "cls")]
    assert [p for p in ours if p not in ("self", "cls")] == named or hook == "request_finished_all_groups"


def test_stats_and_metrics_have_every_method_that_vllm_calls():
    for ours, base in (
        (metrics.EngineStats, "KVConnectorStats"),
        (metrics.EnginePromMetrics, "KVConnectorPromMetrics"),
    ):
        theirs = getattr(
            importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.metrics"), base
        )
        abstract = [
            n
            for n, f in vars(theirs).items()
            if "NotImplementedError" in getattr(f, "__code__", _NONE).co_names
        ]
        assert set(abstract) <= set(vars(ours)), f"{ours.__name__} lacks {set(abstract) - set(vars(ours))}"


def test_the_endpoint_satisfies_vllms_protocol():
    from vllm.plugins.endpoint_plugins.interface import EndpointPlugin

    assert isinstance(endpoint.ActivationsEndpoint(), EndpointPlugin)


@pytest.mark.parametrize(
    ("target", "attributes"),
    [
        (
            "vllm.config:ParallelConfig",
            [
                "pipeline_parallel_size",
                "decode_context_parallel_size",
                "prefill_context_parallel_size",
                "data_parallel_size",
                "data_parallel_rank",
                "data_parallel_external_lb",
                "data_parallel_hybrid_lb",
                "enable_expert_parallel",
                "_api_process_count",
                "enable_eplb",
                "eplb_config",
                "enable_elastic_ep",
                "enable_fault_tolerance",
                "all2all_backend",
                "use_sequence_parallel_moe",
                "use_ubatching",
                "enable_dbo",
                "ubatch_size",
            ],
        ),
        (
            "vllm.config:CompilationConfig",
            ["mode", "cudagraph_mode", "static_forward_context", "static_all_moe_layers"],
        ),
        ("vllm.config:DeviceConfig", ["device_type"]),
        ("vllm.config:SchedulerConfig", ["max_num_seqs", "max_num_batched_tokens"]),
        (
            "vllm.config:VllmConfig",
            [
                "instance_id",
                "speculative_config",
                "num_speculative_tokens",
                "use_v2_model_runner",
                "kv_transfer_config",
                "lora_config",
                "parallel_config",
                "compilation_config",
                "device_config",
            ],
        ),
        (
            "vllm.config:ModelConfig",
            [
                "get_num_experts",
                "get_num_experts_per_tok",
                "get_total_num_hidden_layers",
                "enable_sleep_mode",
            ],
        ),
        ("vllm.v1.core.sched.output:KVConnectorBlockState", ["get_block_ids"]),
        ("vllm.config:SpeculativeConfig", ["method"]),
        (
            "vllm.v1.core.sched.output:SchedulerOutput",
            ["preempted_req_ids", "kv_connector_block_state", "scheduled_spec_decode_tokens"],
        ),
        ("vllm.forward_context:ForwardContext", ["slot_mapping"]),
        (
            "vllm.v1.request:Request",
            ["resumable", "num_prompt_tokens", "num_output_tokens", "kv_transfer_params"],
        ),
        (
            f"{FUSED_MOE}.layer:MoERunner",
            ["layer_id", "layer_name", "_quant_method", "router", "routed_experts", "is_monolithic"],
        ),
        (f"{FUSED_MOE}.routed_experts:RoutedExperts", ["forward_modular", "local_num_experts"]),
        (
            "vllm.distributed.eplb.eplb_state:EplbLayerState",
            ["logical_to_physical_map", "logical_replica_count", "expert_load_view"],
        ),
        ("vllm.distributed.eplb.policy:DefaultEplbPolicy", ["rebalance_experts_hierarchical"]),
        ("vllm.config.parallel:EPLBConfig", ["num_redundant_experts", "window_size"]),
        ("vllm.forward_context:DPMetadata", ["num_tokens_across_dp_cpu"]),
        ("vllm.distributed.parallel_state:GroupCoordinator", ["all_reduce", "cpu_group", "world_size"]),
        (f"{FUSED_MOE}.router.fused_topk_router:FusedTopKRouter", ["top_k"]),
        (f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase", ["is_monolithic", "moe_kernel"]),
        (f"{FUSED_MOE}.routed_experts_capturer:RoutedExpertsCapturer", ["device_buffer", "shape_per_token"]),
    ],
)
def test_attributes_that_are_read_exist(target, attributes):
    module, name = target.split(":")
    cls = getattr(importlib.import_module(module), name)
    known = {n for base in cls.__mro__ for n in (*vars(base), *getattr(base, "__annotations__", {}))}
    assert set(attributes) <= known | assigned(cls)


def assigned(cls):
    """Return the attributes that the methods of a class, and of its bases in vLLM, give its objects."""
    sources = [inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("vllm.")]
    return {
        node.attr
        for text in sources
        for node in ast.walk(ast.parse(textwrap.dedent(text)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


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
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    theirs = inspect.signature(RoutedExperts.forward_monolithic)
    assert list(theirs.parameters) == ["self", "x", "router_logits", "input_ids"]
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


def test_model_runner_v2_passes_attention_metadata_where_a_full_graph_has_no_forward_context():
    from vllm.v1.worker.gpu import kv_connector

    adapter = inspect.getsource(kv_connector.ActiveKVConnector)
    assert 'load_kwargs["attn_metadata"] = attn_metadata' in adapter
    assert adapter.index("bind_connector_metadata") < adapter.index("self._start_load_kv()")
    steps = calls(function(source("v1/worker/gpu/model_runner.py"), "execute_model"))
    before = "self.kv_connector.pre_forward(scheduler_output, input_batch, attn_metadata=attn_metadata)"
    assert position(steps, before) < position(steps, "self.cudagraph_manager.run_fullgraph(")


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

"""What the plug-in takes from vLLM exists in the installed version, with the parameters that it uses."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import vllm

from eldr.engine import compatibility, connector, endpoint, metrics

ENGINE = Path(connector.__file__).parent


def imports():
    for path in sorted(ENGINE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                yield from ((path.name, node.module, alias.name) for alias in node.names)


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
            ["pipeline_parallel_size", "decode_context_parallel_size", "enable_dbo"],
        ),
        ("vllm.config:SchedulerConfig", ["max_num_seqs", "max_num_batched_tokens"]),
        ("vllm.config:VllmConfig", ["instance_id", "speculative_config", "kv_transfer_config"]),
        (
            "vllm.config:ModelConfig",
            ["get_num_experts", "get_num_experts_per_tok", "get_total_num_hidden_layers"],
        ),
        ("vllm.v1.core.sched.output:KVConnectorBlockState", ["get_block_ids"]),
        ("vllm.v1.core.sched.output:SchedulerOutput", ["preempted_req_ids", "kv_connector_block_state"]),
        ("vllm.forward_context:ForwardContext", ["slot_mapping"]),
    ],
)
def test_attributes_that_are_read_exist(target, attributes):
    module, name = target.split(":")
    cls = getattr(importlib.import_module(module), name)
    known = {n for base in cls.__mro__ for n in (*vars(base), *getattr(base, "__annotations__", {}))}
    assert set(attributes) <= known


def test_model_runner_v2_passes_attention_metadata_where_a_full_graph_has_no_forward_context():
    # Triton kernels of the runner need a GPU to run; its source is what can be looked at here.
    from vllm.v1.worker.gpu import kv_connector

    source = inspect.getsource(kv_connector.ActiveKVConnector)
    assert 'load_kwargs["attn_metadata"] = attn_metadata' in source
    assert source.index("bind_connector_metadata") < source.index("self._start_load_kv()")

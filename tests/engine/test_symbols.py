"""What the plug-in takes from vLLM exists in the installed version, with the parameters that it uses."""

import ast
import inspect
from pathlib import Path

import pytest
import vllm
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from eldr.engine import metrics, needs
from eldr.engine.capture import recompute
from eldr.engine.hooks import connector, endpoint


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


def test_a_layer_still_says_which_kernel_it_has():
    """It is asked for by name; without it, the order of a kernel that routes inside itself would be unknown, and nothing tell."""
    assert "self.moe_kernel" in inspect.getsource(FusedMoEMethodBase)


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


def test_model_runner_v2_passes_attention_metadata_before_a_full_graph_which_has_no_forward_context():
    """What connectors get of it: test_capture."""
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

"""Where a step's slots and routing come from, for both model runners and for kernels that route inside themselves."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from vllm.config import VllmConfig
from vllm.forward_context import DPMetadata, set_forward_context
from vllm.model_executor.layers.fused_moe import routed_experts_capturer
from vllm.model_executor.layers.fused_moe.router.aiter_shared_routed_fused_moe_router import (
    AiterSharedRoutedFusedMoERouter,
)
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import FusedTopKBiasRouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter
from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector

from eldr.engine.capture import recompute, routing
from eldr.engine.capture.kernels import FAILED
from eldr.engine.capture.routing import StepSlots
from eldr.engine.counting import Counting
from tests.engine.fakes import Ranks, on_all
from tests.engine.halves import EXPERTS, TOP_K
from tests.engine.stepping import Layer, model

LAYER = "model.layers.1.self_attn.attn"


class Connector:
    """What Model Runner V2 talks to: our connector's worker half, as far as slots go."""

    def __init__(self):
        self.slots = StepSlots(LAYER)
        self.seen = "never finished"

    def bind_connector_metadata(self, metadata):
        self.slots.bind()

    def start_load_kv(self, forward_context, **kwargs):
        self.slots.load(kwargs.get("attn_metadata"))

    def build_connector_worker_meta(self):
        self.seen = self.slots.take()

    def get_transfer_results(self, finished):
        return SimpleNamespace(finished_sending=None, finished_recving=None, failed_recving=None)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.fixture
def runner():
    """Return V2's connector adapter around a recording connector."""
    adapter = ActiveKVConnector.__new__(ActiveKVConnector)
    adapter.vllm_config = VllmConfig()
    adapter.kv_connector = Connector()
    adapter._pending_load_kwargs, adapter._disabled = None, False
    return adapter


def scheduled(sync_loads):
    return SimpleNamespace(
        kv_connector_metadata=object(), has_sync_kv_loads=sync_loads, finished_req_ids=set()
    )


BATCH = SimpleNamespace(idx_mapping=None, req_ids=[], num_tokens=3)


SLOTS = torch.tensor([5, 6, -1])


@pytest.mark.parametrize("sync_loads", [False, True])
@pytest.mark.parametrize("full_graph", [False, True])
def test_v2_takes_slots_from_the_forward_context_and_in_a_full_graph_from_attention(
    runner, sync_loads, full_graph
):
    metadata = {LAYER: SimpleNamespace(slot_mapping=SLOTS), "other": object()}
    context = set_forward_context(None, runner.vllm_config, num_tokens=3, slot_mapping={LAYER: SLOTS})
    with nullcontext() if full_graph else context:
        runner.pre_forward(
            scheduled(sync_loads), input_batch=BATCH, attn_metadata=metadata if full_graph else None
        )
    runner.post_forward(set())
    assert runner.kv_connector.seen is SLOTS


@pytest.mark.parametrize("micro", [False, True], ids=["without tokens", "micro-batches"])
def test_where_there_are_no_slots_those_of_the_step_before_are_not_taken(runner, micro):
    mapping = {LAYER: SLOTS}
    with set_forward_context(
        None, runner.vllm_config, num_tokens=3, slot_mapping=[mapping] if micro else mapping
    ):
        runner.pre_forward(scheduled(False), input_batch=BATCH)
    if micro:
        runner.post_forward(set())
    else:
        runner.no_forward(scheduled(False))
    assert runner.kv_connector.seen is None


def engine(*modules, experts=EXPERTS):
    """Return the configuration of an engine whose model has some modules in three layers."""
    parts = model(*modules)
    parts["model_config"].get_num_experts = lambda: experts
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            data_parallel_rank=0, tensor_parallel_size=1, use_sequence_parallel_moe=False
        ),
        **parts,
    )


def drafting(target, head, draft):
    """Return the configuration of an engine whose model has a layer, beside a head that goes on with its numbers and a draft model's layer."""
    config = engine()
    config.speculative_config = object()
    names = {
        "model.layers.0.mlp": target,
        "model.layers.3.mlp": head,
        "draft_model.model.layers.0.mlp": draft,
    }
    config.compilation_config.static_forward_context = names
    config.compilation_config.static_all_moe_layers = list(names)
    return config


def test_layers_of_a_model_that_drafts_are_told_apart():
    target, *drafts = Layer(0), Layer(3), Layer(0)
    config = drafting(target, *drafts)
    assert routing.moe_modules(config) == ([target], drafts)
    config.speculative_config = None
    with pytest.raises(ValueError, match="layer 0: it routes more than once"):
        routing.moe_modules(config)


def test_experts_that_drafting_loads_are_counted_by_pass_and_touch_no_token():
    layers = target, head, draft = Layer(0), Layer(3), Layer(0)
    config = drafting(*layers)
    step = capture_of(config)
    step.begin()
    route(target, [[1, 2], [3, 4]])
    route(head, [[0, 1], [1, 2]])
    route(head, [[0, 1]])  # another pass reads them again
    route(draft, [[5, EXPERTS], [-1, 5]])  # ids of rows that only fill up a graph may name no expert
    assert step.expert_ids(2).tolist() == [[[1, 2]], [[3, 4]]]
    assert step.drafted().item() == 3 + 2 + 1
    assert step.drafted().item() == 0


def test_a_drafting_layer_goes_on_with_the_very_ids_that_it_chose():
    """Some routers choose in int64, and their kernel reads the tensor after us."""
    layers = Layer(0), Layer(3), Layer(0)
    config = drafting(*layers)
    step = capture_of(config)
    step.begin()
    ids = torch.tensor([[0, EXPERTS - 1], [-1, 2]])
    with set_forward_context(None, VllmConfig(), num_tokens=2):
        layers[1].router.capture_fn(ids)
    assert ids.tolist() == [[0, EXPERTS - 1], [-1, 2]]
    assert step.drafted().item() == 3


def test_what_warm_ups_drafted_and_what_fails_beside_the_counts_changes_no_count(monkeypatch):
    layers = target, head, _ = Layer(0), Layer(3), Layer(0)
    config = drafting(*layers)
    step = capture_of(config)
    route(head, [[0, 1]])
    step.begin()
    assert step.drafted().item() == 0
    monkeypatch.setattr(step._drafting, "_used", None)
    route(head, [[0, 1]])
    route(target, [[1, 2]])
    assert step.expert_ids(1).tolist() == [[[1, 2]]]
    assert not step._capturer._counting.stopped


def test_layers_without_numbers_cannot_be_told_from_those_that_draft():
    config = engine()
    names = {f"blocks.{n}.ffn": Layer(n) for n in range(2)}
    config.compilation_config.static_forward_context = names
    config.compilation_config.static_all_moe_layers = list(names)
    assert len(routing.moe_modules(config)[0]) == 2
    config.speculative_config = object()
    with pytest.raises(ValueError, match=r"blocks\.0\.ffn: layers that draft cannot be distinguished from"):
        routing.moe_modules(config)


def test_where_drafting_hides_its_experts_those_of_the_model_are_counted_all_the_same(caplog):
    layers = target, head, _ = Layer(0), Layer(3), Layer(0)
    head.router.num_fused_shared_experts = 1
    config = drafting(*layers)
    step = capture_of(config)
    step.begin()
    route(target, [[1, 2]])
    assert step.expert_ids(1).tolist() == [[[1, 2]]]
    assert step.drafted() is None
    assert "what drafting loads is not counted: layer 3: router" in caplog.text


def capture_of(config, over=None):
    return routing.RoutingCapture(config, Counting("the routing"), over)


def route(layer, ids):
    """Do what the layer's router does after it has chosen."""
    with set_forward_context(None, VllmConfig(), num_tokens=len(ids)):
        layer.router.capture_fn(torch.tensor(ids))


def test_ids_of_the_layers_that_have_experts_are_captured_in_their_order():
    layers = Layer(2), Layer(0)
    step = capture_of(engine(*layers))
    step.begin()
    route(layers[0], [[1, 2], [3, 4]])
    route(layers[1], [[5, 0], [0, 1]])
    assert step.n_layers == 2
    assert step.expert_ids(2).tolist() == [[[5, 0], [1, 2]], [[0, 1], [3, 4]]]


def test_a_capture_that_fails_ends_counting_and_keeps_no_rank_waiting(monkeypatch):
    layer, counting, sums = Layer(0), Counting("the routing"), []
    group = SimpleNamespace(all_reduce=lambda said: sums.append(said) or said, rank_in_group=0, world_size=2)
    routing.RoutingCapture(engine(layer), counting, group).share()
    monkeypatch.setattr(routing._Capturer, "_column", lambda *_: 1 / 0)
    route(layer, [[1, 2]])
    assert counting.stopped == "counting failed: ZeroDivisionError('division by zero')"
    assert [int(said[-1]) for said in sums] == [1], "it says that it failed"


IDS = torch.tensor([[[5, 0], [1, 2]], [[0, 1], [3, 4]], [[2, 3], [4, 5]]])
"""Of three tokens in two layers."""


@pytest.fixture
def parts(monkeypatch):
    """Return what the two ranks of a tensor-parallel group make a capture of, where each routes a part of three tokens."""
    tensor, data = Ranks(2), Ranks(2)
    ranks = DPMetadata(torch.tensor([3, 2]))
    monkeypatch.setattr(routing, "get_forward_context", lambda: SimpleNamespace(dp_metadata=ranks))
    made = []
    for rank in range(2):
        monkeypatch.setattr(
            routing, "get_tp_group", lambda rank=rank: SimpleNamespace(all_gather=tensor.gather(rank))
        )
        layers = Layer(0, monolithic=True), Layer(1)
        config = engine(*layers)
        config.parallel_config.tensor_parallel_size = 2
        config.parallel_config.use_sequence_parallel_moe = True
        over = SimpleNamespace(all_reduce=data.add(rank), rank_in_group=rank, world_size=2)
        counting = Counting(f"rank {rank}")
        step = routing.RoutingCapture(config, counting, over)
        made.append(SimpleNamespace(layers=layers, step=step, counting=counting))
    return made


def run_parts(parts, spoiled=None):
    """Run a step, in which a layer of the second rank may not be captured; return what each rank captured, and knows of all."""
    rows = torch.cat((IDS, torch.full((1, 2, TOP_K), 5))).chunk(2)  # the last one pads

    def run(rank, one):
        own, (inside, outside) = rows[rank], one.layers
        one.step.begin(1)
        logits = torch.zeros(2, EXPERTS).scatter(1, own[:, 0], torch.tensor([[2.0, 1.0]] * 2))
        bad = spoiled if rank else None
        inside.routed_experts.forward_monolithic(x=1, router_logits=["?"] * 2 if bad == 0 else logits)
        outside.router.capture_fn(own[:, 1, [0, 1, 0]] if bad == 1 else own[:, 1])
        captured = one.step.expert_ids(3).clone()
        one.step.end(failed=bool(one.counting.stopped))
        return captured, int(one.step.union.report[-1])

    return on_all(parts, run)


def test_ranks_that_route_parts_of_the_same_tokens_gather_them_once_a_step(parts):
    for one in parts:
        one.step.share()
    for captured, _ in run_parts(parts):
        assert captured.equal(IDS.to(torch.int32))
    assert not any(one.counting.stopped for one in parts)


@pytest.mark.parametrize("where", ["inside", "outside", "elsewhere", "tokens"])
def test_a_rank_that_fails_to_capture_its_part_keeps_none_waiting_and_all_know(parts, where, monkeypatch):
    for one in parts:
        one.step.share()
    if where == "tokens":
        monkeypatch.setattr(parts[1].step._capturer, "_tokens", lambda _: 1 / 0)
    if where == "elsewhere":
        parts[1].counting.stop("out of memory")
    found = run_parts(parts, {"inside": 0, "outside": 1}.get(where))
    assert [told for _, told in found] == [FAILED, FAILED], "of the same step"
    assert found[0][0][:2].equal(IDS[:2].to(torch.int32)), "its own part"
    assert bool((found[0][0][2] < 0).all()), "the other's part is unknown"
    assert parts[1].counting.stopped


def test_where_a_rank_cannot_take_part_the_others_gather_nothing(parts, monkeypatch):
    """It has no room for a buffer, say, so that none of its layers is captured."""
    one, gathered = parts[0], []
    group = SimpleNamespace(all_gather=lambda *of, **_: gathered.append(of) or 1 / 0)
    monkeypatch.setattr(one.step._capturer, "_group", group)
    monkeypatch.setattr(routed_experts_capturer, "get_tp_group", lambda: group)
    monkeypatch.setattr(routed_experts_capturer, "get_forward_context", routing.get_forward_context)
    one.counting.stop("no room on rank 1")
    for ids, layer in zip(IDS[:2].unbind(1), one.layers, strict=True):
        if layer.layer_id:
            layer.router.capture_fn(ids)
        else:
            layer.routed_experts.forward_monolithic(x=1, router_logits=torch.zeros(2, EXPERTS))
    assert not gathered


def test_a_layer_that_captures_nothing_in_a_step_shows_no_ids_of_the_steps_before():
    layers = Layer(0), Layer(1)
    step = capture_of(engine(*layers))
    for layer in layers:
        route(layer, [[1, 2]] * 8)  # a warm-up, which is no step
    step.begin()
    route(layers[0], [[3, 4]] * 4)
    route(layers[1], [[4, 5]])
    assert step.expert_ids(4)[:, 1].tolist() == [[4, 5], *[[-1, -1]] * 3]
    step.begin()
    route(layers[1], [[0, 1]])
    assert step.expert_ids(8)[:, 0].tolist() == [[-1, -1]] * 8
    assert step.expert_ids(8)[:, 1].tolist() == [[0, 1], *[[-1, -1]] * 7]


def test_a_rank_with_requests_of_its_own_also_sees_what_all_ranks_use():
    layers = Layer(2), Layer(0)
    used = torch.zeros(2, EXPERTS, dtype=torch.int32)
    used[0, 5] = used[1, [1, 3]] = 1  # by layer number
    other = torch.cat((used.view(-1), torch.tensor([7, 0, 0])))  # its requests, and that it did not fail
    group = SimpleNamespace(all_reduce=lambda said: said + other, rank_in_group=1, world_size=2)
    step = capture_of(engine(*layers), group)
    assert step.union is None, "the other may fail to"
    step.begin(2)
    route(layers[1], [[5, 0]])
    route(layers[0], [[1, 2]])
    step.share()
    step.begin(2)
    route(layers[1], [[5, 0], [0, -1]])
    route(layers[0], [[1, 2], [3, 4]])
    assert step.union.report.tolist() == [2, 4, 0], "the other tells of the 9 requests"
    assert step.expert_ids(2)[:, 0].tolist() == [[5, 0], [0, -1]], "its own, as without the others"
    step.begin(2)
    assert step.union.report.tolist() == [0, 0, 0]
    assert capture_of(engine(Layer(0))).union is None


def bias_router(**changes):
    return FusedTopKBiasRouter(TOP_K, EXPERTS, e_score_correction_bias=torch.zeros(EXPERTS), **changes)


@pytest.mark.parametrize(
    ("router", "named"),
    [
        (
            ZeroExpertRouter(TOP_K, EXPERTS + 2, torch.zeros(EXPERTS + 2), EXPERTS, "identity"),
            "ZeroExpertRouter shows expert 0 where a token uses a zero expert",
        ),
        (bias_router(num_fused_shared_experts=1), "FusedTopKBiasRouter adds 1 shared"),
        (
            GroupedTopKRouter(TOP_K, EXPERTS, num_expert_group=2, topk_group=1, num_fused_shared_experts=2),
            "GroupedTopKRouter adds 2 shared",
        ),
        (AiterSharedRoutedFusedMoERouter(TOP_K, EXPERTS, 1), "AiterSharedRoutedFusedMoERouter adds 1 shared"),
        (FusedTopKRouter(TOP_K + 1, EXPERTS), "chooses 3 experts, the model's configuration says 2"),
        (SimpleNamespace(), "not supported with router SimpleNamespace"),
    ],
)
def test_a_router_whose_ids_are_not_the_experts_of_a_token_is_not_counted(router, named):
    with pytest.raises(routing.HiddenRoutingError, match=named):
        capture_of(engine(Layer(0), Layer(1, router)))


def test_routers_with_nothing_fused_are_counted():
    grouped = GroupedTopKRouter(TOP_K, EXPERTS, num_expert_group=2, topk_group=1)
    assert capture_of(engine(Layer(0, bias_router()), Layer(1, grouped))).n_layers == 2


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (engine(), "no mixture-of-experts layer found"),
        (engine(Layer(0), torch.nn.Identity()), "layer 1: its class Identity captures no routing"),
        (engine(Layer(1), Layer(1)), "layer 1: it routes more than once"),
        (engine(Layer(0), Layer(3)), "layer 3: the model has layers 0 to 2"),
        (engine(Layer(0), experts=0), "requires positive layer, expert"),
        (
            engine(Layer(1, bias_router(), monolithic=True)),
            "layer 1: kernel NoneType routes inside itself, and router FusedTopKBiasRouter",
        ),
    ],
)
def test_without_every_layer_nothing_is_counted(config, named):
    with pytest.raises(routing.HiddenRoutingError, match=named):
        capture_of(config)


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("VLLM_ROCM_MONO_DECODE", {}),
        ("VLLM_USE_RUST_FRONTEND", {}),
        ("--monokernel", {"kernel_config": SimpleNamespace(monokernel=True)}),
        (
            "decode_backend=latency_specialized",
            {"additional_config": {"decode_backend": "latency_specialized"}},
        ),
        (None, {"kernel_config": SimpleNamespace(monokernel=False)}),
        (None, {"additional_config": {"decode_backend": "x"}}),
        (None, {"additional_config": object()}),
    ],
)
def test_settings_that_hide_experts_make_signatures_unavailable_and_others_do_not(
    monkeypatch, setting, fields
):
    """Else the union of a step would lack layers, and step times would be learned from it."""
    config = engine(Layer(0))
    vars(config).update(fields)
    for name in ("VLLM_ROCM_MONO_DECODE", "VLLM_USE_RUST_FRONTEND"):
        monkeypatch.setenv(name, "True" if name == setting else "0")
    if setting is None:
        assert capture_of(config).n_layers == 1
        return
    with pytest.raises(routing.HiddenRoutingError, match=f"^{setting}: .*; switch it off"):
        capture_of(config)


def test_a_buffer_that_cannot_be_had_makes_signatures_unavailable_and_not_the_engine(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(routing, "_Capturer", full)
    with pytest.raises(routing.HiddenRoutingError, match="no memory"):
        capture_of(engine(Layer(0)))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("OAITritonMxfp4ExpertsMonolithic", [[3, 0], [0, 1]]),
        ("AiterW4A8ExpertsMonolithic", [[3, 5], [5, 4]]),
        ("AiterW4A16ExpertsMonolithic", [[3, 5], [5, 4]]),
        ("AnotherKernel", [[3, 0], [0, 1]]),
    ],
)
def test_experts_whose_logits_tie_are_taken_in_the_order_of_the_kernel(name, taken):
    layer = Layer(0, monolithic=True)
    experts = SimpleNamespace(fused_experts=type(name, (), {})())
    layer._quant_method = SimpleNamespace(is_monolithic=True, moe_kernel=SimpleNamespace(impl=experts))
    step = capture_of(engine(layer))
    step.begin()
    logits = torch.tensor([[1.0, 0.5, 1.0, 2.0, -1.0, 1.0], [0.0] * EXPERTS], dtype=torch.bfloat16)
    with set_forward_context(None, VllmConfig(), num_tokens=2):
        assert layer.routed_experts.forward_monolithic(x=1, router_logits=logits, input_ids=None) == 2
    assert step.expert_ids(2)[:, 0].tolist() == taken


@pytest.mark.parametrize("highest_first", [False, True])
def test_the_recomputed_choice_is_that_of_numbers_and_logits_sorted_as_pairs(highest_first):
    sign = 1 if highest_first else -1
    logits = torch.randn((500, 32), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    ties = 0
    for row, ids in zip(
        logits.tolist(), recompute.chosen(logits, 4, highest_first=highest_first).tolist(), strict=True
    ):
        pairs = sorted(((value, sign * expert) for expert, value in enumerate(row)), reverse=True)
        assert ids == [sign * number for _, number in pairs[:4]]
        ties += pairs[3][0] == pairs[4][0]
    assert ties > 0

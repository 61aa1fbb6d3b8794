"""Where a step's slots and routing come from, for both model runners and for kernels that route inside themselves."""

from types import SimpleNamespace

import pytest
import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector

from eldr.engine import capture
from eldr.engine.capture import StepSlots

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


@pytest.mark.parametrize("sync_loads", [False, True])
def test_v2_in_a_full_graph_takes_slots_from_the_attention_metadata(runner, sync_loads):
    slots = torch.tensor([5, 6, -1])
    runner.pre_forward(
        scheduled(sync_loads),
        BATCH,
        attn_metadata={LAYER: SimpleNamespace(slot_mapping=slots), "other": object()},
    )
    runner.post_forward(set())
    assert runner.kv_connector.seen is slots


@pytest.mark.parametrize("sync_loads", [False, True])
def test_v2_in_piecewise_graphs_takes_slots_from_the_forward_context(runner, sync_loads):
    slots = torch.tensor([5, 6, -1])
    with set_forward_context(None, runner.vllm_config, num_tokens=3, slot_mapping={LAYER: slots}):
        runner.pre_forward(scheduled(sync_loads), BATCH)
    runner.post_forward(set())
    assert runner.kv_connector.seen is slots


def test_v2_without_tokens_has_no_slots_and_not_those_of_the_step_before(runner):
    with set_forward_context(None, runner.vllm_config, num_tokens=1, slot_mapping={LAYER: torch.tensor([1])}):
        runner.pre_forward(scheduled(False), BATCH)
    runner.no_forward(scheduled(False))
    assert runner.kv_connector.seen is None


def test_micro_batches_give_no_slots(runner):
    with set_forward_context(
        None, runner.vllm_config, num_tokens=1, slot_mapping=[{LAYER: torch.tensor([1])}]
    ):
        runner.pre_forward(scheduled(False), BATCH)
    runner.post_forward(set())
    assert runner.kv_connector.seen is None


class Monolithic:
    """A layer whose kernel gets logits and shows nothing."""

    layer_id = 3

    def __init__(self, router):
        self.router = router
        self.routed_experts = SimpleNamespace(forward_monolithic=lambda x, router_logits, input_ids: x + 1)
        self._quant_method = SimpleNamespace(is_monolithic=True)


class Capturer:
    def __init__(self):
        self.calls = []

    def capture(self, layer_id, topk_ids):
        self.calls.append((layer_id, topk_ids))


def test_the_choice_of_a_kernel_that_routes_inside_itself_is_recomputed_from_its_logits():
    runner, capturer = Monolithic(FusedTopKRouter(2, 5)), Capturer()
    capture._bind(runner, capturer)
    logits = torch.tensor([[0.1, 3.0, -1.0, 2.0, 0.0], [9.0, 0.0, 8.0, 1.0, 2.0]])
    assert runner.routed_experts.forward_monolithic(x=1, router_logits=logits, input_ids=None) == 2
    ((layer, ids),) = capturer.calls
    assert layer == 3
    assert ids.tolist() == [[1, 3], [0, 2]]


def test_a_router_that_is_more_than_a_top_k_is_not_guessed():
    with pytest.raises(
        ValueError, match="layer 3: kernel NoneType routes inside itself, and router SimpleNamespace"
    ):
        capture._bind(Monolithic(SimpleNamespace(top_k=2)), Capturer())

"""Both halves of an engine with vLLM's own capture of routing, and everything of ours between a step's orders and its report."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

from eldr.engine import worker as worker_half
from tests.engine.fakes import LAYERS, Slots
from tests.engine.halves import (
    EXPERTS,
    TOP_K,
    Halves,
    config,
    decode_half,
    output,
    prefill_half,
    sent,
    slots_of,
    worker_of,
)


class Layer(MoERunner):
    """A mixture-of-experts layer, as far as its routing can be seen."""

    layer_id = _quant_method = None

    def __init__(self, layer_id: int, router: Any = None, *, monolithic: bool = False) -> None:
        torch.nn.Module.__init__(self)
        self.layer_id = layer_id
        self.router = router or FusedTopKRouter(TOP_K, EXPERTS)
        self.routed_experts = SimpleNamespace(forward_monolithic=lambda x, router_logits, input_ids: x + 1)
        self._quant_method = SimpleNamespace(is_monolithic=monolithic)
        self.moe_config = SimpleNamespace(num_logical_experts=EXPERTS, experts_per_token=TOP_K, device="cpu")


def model(*modules: Any, layers: int = 3, tokens: int = 8) -> dict[str, Any]:
    """Return the parts of an engine's configuration that tell of a model with some modules in its layers."""
    context = {f"layer {n}": module for n, module in enumerate(modules)}
    return {
        "model_config": SimpleNamespace(
            get_total_num_hidden_layers=lambda: layers,
            get_num_experts=lambda: EXPERTS,
            get_num_experts_per_tok=lambda: TOP_K,
            hf_text_config=SimpleNamespace(model_type="test"),
        ),
        "scheduler_config": SimpleNamespace(max_num_batched_tokens=tokens, max_num_seqs=2),
        "speculative_config": None,
        "compilation_config": SimpleNamespace(
            static_forward_context={"attention": torch.nn.Identity(), **context},
            static_all_moe_layers=list(context),
        ),
    }


class Stepped(Halves):
    """An engine of a role whose steps are watched.

    Parameters
    ----------
    role : str
        "prefill" or "decode".
    dense : int
        Layers without experts before those with some.
    add : callable, optional
        The sum over ranks with requests of their own, if there are others.
    """

    FORWARD: ClassVar[Any] = VllmConfig()

    def __init__(self, monkeypatch: Any, role: str, *, dense: int = 0, add: Any = None) -> None:
        self.layers = [Layer(dense + n, monolithic=n == LAYERS - 1) for n in range(LAYERS)]
        of_engine = config()
        vars(of_engine).update(model(*self.layers, layers=dense + LAYERS, tokens=16))
        of_engine.parallel_config.tensor_parallel_size = 1
        of_engine.parallel_config.use_sequence_parallel_moe = False
        if add is not None:
            group = SimpleNamespace(all_reduce=add, rank_in_group=0, world_size=2)
            monkeypatch.setattr(worker_half, "union_group", lambda _: group)
            monkeypatch.setattr(worker_half, "gather", lambda own, _: [own, ""])
        monkeypatch.setattr(worker_half, "StepSlots", Slots)
        prefill = role == "prefill"
        half = (prefill_half if prefill else decode_half)(of_engine)
        super().__init__(half, worker_of(of_engine, prompts=prefill))
        if not prefill:
            worker_half.agree(of_engine, self.worker._counting, self.worker)
        self._watch: Any = nullcontext()
        if add is not None:
            self._form = self.worker._capture.union.form
            self.worker._capture.union.form = self._formed

    def _formed(self, tokens: int) -> None:
        with self._watch:
            self._form(tokens)

    def run(self, watch: Any, *tokens: Any, layers: Any = None) -> Any:
        """Run a step of (request, tokens computed before, tokens in it) that all use experts 0 and 1, under a watch; return its report.

        Parameters
        ----------
        layers : context, optional
            Watches what the layers capture in its place.
        """
        self._watch = watch if layers is not None else nullcontext()
        orders = sent(self.half.orders(output((), tokens, self.blocks)))
        Slots.slots = slots = slots_of((), tokens, self.blocks)
        with watch:
            self.worker.begin(orders)
        if slots is not None:
            ids = torch.tensor([0, 1], dtype=torch.int32).expand(len(slots), TOP_K).contiguous()
            logits = torch.zeros(len(slots), EXPERTS)
            logits[:, :TOP_K] = 1.0
            with set_forward_context(None, self.FORWARD, num_tokens=len(slots)), layers or watch:
                for layer in self.layers[:-1]:
                    layer.router.capture_fn(ids)
                self.layers[-1].routed_experts.forward_monolithic(x=1, router_logits=logits)
        with watch:
            return self.worker.finish()

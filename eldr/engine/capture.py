"""How the routing of a forward pass becomes visible, and where its tokens lie in the KV cache.

vLLM's own ``RoutedExpertsCapturer`` writes each layer's expert ids into a static buffer, inside CUDA graphs too; nothing
of ours runs in the forward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsMonolithic
from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
    RoutedExpertsCapturer,
    bind_routed_experts_capturer,
)
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

logger = init_logger("vllm.eldr")


class HiddenRoutingError(RuntimeError):
    """The model's kernels do not show which experts they use."""


class RoutingCapture:
    """Expert ids of the current step.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Raises
    ------
    HiddenRoutingError
        If a layer's routing can neither be captured nor recomputed.
    """

    def __init__(self, config: Any) -> None:
        context = config.compilation_config.static_forward_context
        runners = [module for module in context.values() if isinstance(module, MoERunner)]
        self._capturer = RoutedExpertsCapturer(config.scheduler_config.max_num_batched_tokens, config)
        try:
            for runner in runners:
                _bind(runner, self._capturer)
        except ValueError as error:
            raise HiddenRoutingError(str(error)) from error
        layers = sorted({runner.layer_id for runner in runners})
        if not layers:
            raise HiddenRoutingError("no mixture-of-experts layer found")
        self.n_layers = len(layers)
        buffer = self._capturer.device_buffer
        self.device = buffer.device
        self._all = layers == list(range(buffer.shape[1]))
        self._layers = torch.tensor(layers, device=buffer.device)

    def expert_ids(self, n_tokens: int) -> torch.Tensor:
        """Return the ids of the step's first tokens, int32 of shape (n_tokens, n_layers, top_k)."""
        ids = self._capturer.device_buffer[:n_tokens]
        return ids if self._all else ids.index_select(1, self._layers)


def _bind(runner: Any, capturer: Any) -> None:
    kernel = getattr(getattr(runner._quant_method, "moe_kernel", None), "impl", None)  # noqa: SLF001 - as vLLM's binder
    experts = getattr(kernel, "fused_experts", None)
    reports = isinstance(experts, FusedMoEExpertsMonolithic) and experts.supports_routing_replay_capture()
    if not runner._quant_method.is_monolithic or reports:  # noqa: SLF001
        bind_routed_experts_capturer(torch.nn.ModuleList([runner]), capturer)
    elif type(runner.router) is FusedTopKRouter:
        _recompute(runner, partial(capturer.capture, runner.layer_id))
    else:
        raise ValueError(
            f"layer {runner.layer_id}: kernel {type(experts).__name__} routes inside itself, and router "
            f"{type(runner.router).__name__} is not a plain top-k, so its choice cannot be recomputed"
        )


def _recompute(runner: Any, capture: Any) -> None:
    """Capture the top-k of the logits that a monolithic kernel gets: softmax and sigmoid keep their order."""
    routed, top_k = runner.routed_experts, runner.router.top_k
    inner = routed.forward_monolithic

    def forward_monolithic(x: Any, router_logits: Any = None, input_ids: Any = None) -> Any:
        capture(router_logits.topk(top_k, dim=-1).indices)
        return inner(x=x, router_logits=router_logits, input_ids=input_ids)

    routed.forward_monolithic = forward_monolithic
    logger.info("ELDR: layer %d routes inside its kernel; its choice is recomputed", runner.layer_id)


class StepSlots:
    """Slot mapping of the current step, for both model runners.

    Model Runner V1, and V2 without full CUDA graphs, keep it in the forward context, which is there when the step's
    metadata is bound. A full-graph step of V2 has no forward context; it passes its attention metadata when loads start.

    Parameters
    ----------
    layer_name : str
        A layer of the group whose slots are wanted.
    """

    def __init__(self, layer_name: str) -> None:
        self._layer_name = layer_name
        self._slots: torch.Tensor | None = None

    def bind(self) -> None:
        """Begin a step: take the mapping from the forward context, if there is one."""
        self._slots = None
        if is_forward_context_available():
            self._take(get_forward_context().slot_mapping)

    def load(self, attention_metadata: Any = None) -> None:
        """Take the mapping from the attention metadata, if the step has no forward context."""
        if self._slots is None and isinstance(attention_metadata, dict):
            layer = attention_metadata.get(self._layer_name)
            self._slots = getattr(layer, "slot_mapping", None)

    def take(self) -> torch.Tensor | None:
        """Return the mapping, once; None for a step without tokens, or a warm-up."""
        slots, self._slots = self._slots, None
        return slots

    def _take(self, mapping: Any) -> None:
        # a list means micro-batches, which compatibility.check refuses
        if isinstance(mapping, dict):
            self._slots = mapping.get(self._layer_name)

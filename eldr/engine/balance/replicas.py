"""Where vLLM lets us choose among an expert's replicas: the only module that depends on how.

vLLM's expert layer is a ``PluggableLayer``: a class registered under its name is built in its place. Ours hands the
physical experts that vLLM chose to an exchange, before any token is sent to them, and does nothing until one is
attached. What counts experts, and what EPLB places them by, has happened by then and stays vLLM's own. An official hook is
proposed (vLLM pull request 49700, ``map_and_record``); it would replace :func:`claim`. Its EPLB does not report that it
moved experts, so :func:`after_moves` looks after each of its steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed.eplb.eplb_state import EplbState
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter

from eldr.contract import CONNECTOR, ENV_BALANCE
from eldr.engine import refusal
from eldr.engine.balance import placement
from eldr.engine.balance.choice import alone
from eldr.engine.capture.routing import moe_modules
from eldr.engine.errors import UnsupportedEngineError
from eldr.engine.steps import connectors_of

logger = init_logger("vllm.eldr")

NAME = RoutedExperts.__name__

Exchange = Callable[[torch.Tensor, int], torch.Tensor]
"""See :meth:`eldr.engine.balance.choice.Balance.exchange`."""


class BalancedExperts(RoutedExperts):
    """vLLM's expert layer, with an exchange that chooses replicas.

    Raises
    ------
    UnsupportedEngineError
        If the engine runs without ELDR's connector, which compares the ranks and attaches the exchange, or another plug-in
        places experts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = get_current_vllm_config()
        with refusal.reported():
            if CONNECTOR not in connectors_of(config.kv_transfer_config):
                raise UnsupportedEngineError(
                    f"{ENV_BALANCE} needs {CONNECTOR} in --kv-transfer-config: it compares the ranks at the start; add it, or unset "
                    f"{ENV_BALANCE}"
                )
            placement.claim(config)
        super().__init__(*args, **kwargs)
        self.exchange: Exchange | None = None

    def forward_modular(
        self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the experts, after the exchange of replicas."""
        if self.exchange is not None:
            ranks = get_forward_context().dp_metadata
            # the same number on all ranks: they must decide alike
            tokens = len(topk_ids) if ranks is None else int(ranks.num_tokens_across_dp_cpu.sum())
            with refusal.reported():
                topk_ids = self.exchange(topk_ids, tokens)
        return super().forward_modular(x, topk_weights, topk_ids, *args, **kwargs)


def claim() -> None:
    """Have vLLM build our class for its expert layer; before any model is made. May be called several times.

    Another plug-in's stays: :func:`layers` refuses it.
    """
    if NAME not in op_registry_oot:
        RoutedExperts.register_oot(name=NAME)(BalancedExperts)


def layers(config: Any) -> list[MoERunner]:
    """Return an engine's mixture-of-experts layers, by number, each with :class:`BalancedExperts`.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Raises
    ------
    UnsupportedEngineError
        If the replicas of one cannot be chosen: some ranks' layers would be balanced by tokens, silently.
    """
    try:
        modules = sorted(moe_modules(config)[0], key=lambda module: module.layer_id)
    except ValueError as error:
        raise UnsupportedEngineError(f"{ENV_BALANCE}: {error}") from error
    for module in modules:
        if why := _hidden(module):
            raise UnsupportedEngineError(f"{ENV_BALANCE}: layer {module.layer_id}: {why}; unset it")
    return modules


def _hidden(module: Any) -> str:
    if not isinstance(module, MoERunner):
        return f"{type(module).__name__} chooses replicas by itself"
    if not isinstance(module.routed_experts, BalancedExperts):
        return f"the model brings an expert layer of its own, {type(module.routed_experts).__name__}"
    if module.is_monolithic:
        return "its kernel routes inside itself"
    if not isinstance(module.router, BaseRouter):
        return f"router {type(module.router).__name__} does not map to replicas"
    state = module.router.eplb_state
    if state is None or state.logical_to_physical_map is None:
        return "vLLM keeps no replicas of this model's experts"
    return ""


def after_moves(read: Callable[[], None]) -> None:
    """Have something read the maps after each of EPLB's steps.

    These are the last thing of every forward pass, also of a dummy one, on all ranks; vLLM changes maps nowhere else.
    """
    step = EplbState.step

    @functools.wraps(step)
    def stepped(self: EplbState, *args: Any, **kwargs: Any) -> None:
        step(self, *args, **kwargs)
        with refusal.reported(), alone("the maps of experts cannot be read"):
            read()

    EplbState.step = stepped

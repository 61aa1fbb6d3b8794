"""How the routing of a forward pass becomes visible, and where its tokens lie in the KV cache.

vLLM's own ``RoutedExpertsCapturer`` writes each layer's expert ids into a static buffer, inside CUDA graphs too; nothing
of ours runs in the forward pass.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsMonolithic
from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
    RoutedExpertsCapturer,
    RoutedExpertsCaptureSource,
    bind_routed_experts_capturer,
)
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter

from eldr.engine.capture.kernels import NO_EXPERT
from eldr.engine.capture.recompute import recompute
from eldr.engine.capture.union import GroupUnion
from eldr.engine.counting import Counting
from eldr.engine.errors import HiddenRoutingError

logger = init_logger("vllm.eldr")

NO_SLOTS = "a step did not report where its tokens are in the KV cache"


@contextmanager
def table_memory(n_bytes: int) -> Iterator[None]:
    """Allocate a table in this context: the KV cache has taken its share before, so there may be no room.

    Raises
    ------
    HiddenRoutingError
        If torch cannot allocate it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # what torch raises is the former
        raise HiddenRoutingError(
            f"no memory for the table: {n_bytes / 2**20:.1f} MiB; the KV cache leaves too little, lower "
            f"--gpu-memory-utilization ({error})"
        ) from error


def uncounted(config: Any) -> str:
    """Return the setting that keeps experts from being counted, and why; empty if there is none.

    Which of these exist depends on the release: vLLM 0.32 has the variable of ROCm, 0.33 the option, the backend and the
    HTTP server in Rust.
    """
    extra = getattr(config, "additional_config", None)
    one_kernel = "decode layers run inside one kernel, which hides the experts"
    settings = {
        "VLLM_ROCM_MONO_DECODE": (_is_on("VLLM_ROCM_MONO_DECODE"), one_kernel),
        "--monokernel": (getattr(getattr(config, "kernel_config", None), "monokernel", False), one_kernel),
        "decode_backend=latency_specialized": (
            isinstance(extra, dict) and extra.get("decode_backend") == "latency_specialized",
            one_kernel,
        ),
        "VLLM_USE_RUST_FRONTEND": (
            _is_on("VLLM_USE_RUST_FRONTEND"),
            "its HTTP server lacks the endpoint of activations",
        ),
    }
    return next((f"{name}: {reason}" for name, (is_set, reason) in settings.items() if is_set), "")


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true")


class RoutingCapture:
    """Expert ids of the current step.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    counting : Counting
        Stopped by whatever fails in a forward pass.
    over : GroupCoordinator, optional
        Ranks with tokens of their own in the same steps, for :meth:`union`, once :meth:`share` was called.

    Raises
    ------
    HiddenRoutingError
        If a layer's routing can neither be captured nor recomputed, a setting keeps layers from calling a router, or vLLM
        cannot make its buffer.
    """

    def __init__(self, config: Any, counting: Counting, over: Any = None) -> None:
        self._union: GroupUnion | None = None
        self._offered: GroupUnion | None = None
        if reason := uncounted(config):
            raise HiddenRoutingError(f"{reason}; switch it off to have them counted")
        try:
            modules, drafting = moe_modules(config)
            tokens = config.scheduler_config.max_num_batched_tokens
            self._capturer = _Capturer(tokens, config, counting)
            if over is not None:
                self._offered = GroupUnion(
                    self._capturer.device_buffer,
                    [module.layer_id for module in modules],
                    config.model_config.get_num_experts(),
                    over.all_reduce,
                    counting,
                    rank=over.rank_in_group,
                    ranks=over.world_size,
                )
            for module in modules:
                _bind(module, self._capturer, counting)
        except (ValueError, RuntimeError) as error:
            raise HiddenRoutingError(str(error)) from error
        # ranks with tokens of their own would have to add up what each of them drafts
        self._drafting = _drafting(drafting) if over is None and drafting else None
        self._buffer = self._capturer.device_buffer
        self._written = self._buffer.shape[0]  # rows that may hold ids, at first those of warm-ups
        layers = sorted(module.layer_id for module in modules)
        self.n_layers = len(layers)
        self.device = self._buffer.device
        self._all = layers == list(range(self._buffer.shape[1]))
        self._layers = torch.tensor(layers, device=self.device)

    def share(self) -> None:
        """Take part in the union from now on; only where all ranks can, for they wait for each other, and before graphs are captured."""
        self._capturer.union = self._union = self._offered

    def begin(self, requests: int = 0) -> None:
        """Begin a step with some requests; forget the ids of the one before: a layer that captures nothing must count nothing."""
        if self._written == len(self._buffer):  # of warm-ups
            self.drafted()
        self._buffer[: self._written].fill_(NO_EXPERT)
        self._written = 0
        if self._union is not None:
            self._union.begin(requests)

    def clear(self) -> None:
        """Forget everything, whatever the tensors hold."""
        self._written = len(self._buffer)
        if self._union is not None:
            self._union.clear()

    def expert_ids(self, n_tokens: int) -> torch.Tensor:
        """Return the ids of the step's first tokens, int32 of shape (n_tokens, n_layers, top_k)."""
        self._written = n_tokens
        ids = self._buffer[:n_tokens]
        return ids if self._all else ids.index_select(1, self._layers)

    def nothing(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return expert ids and slots of a token that lies nowhere: what counts them is compiled, and changes no table."""
        ids = self._buffer.new_full((1, self.n_layers, self._buffer.shape[2]), NO_EXPERT)
        return ids, torch.full((1,), -1, dtype=torch.int64, device=self.device)

    def drafted(self) -> torch.Tensor | None:
        """Return the experts that layers which draft have loaded since the last call, shape (); None where they are not counted."""
        return None if self._drafting is None else self._drafting.take()

    def end(self, *, failed: bool = False) -> None:
        """End the step; a rank that failed to count reports it in later steps."""
        if self._union is not None:
            self._union.end()
            if failed:
                self._union.fail()

    @property
    def union(self) -> GroupUnion | None:
        """The step over all ranks; None if this rank has all its tokens itself, or takes no part."""
        return self._union


class _Capturer(RoutedExpertsCapturer):
    """Captures, and does with other ranks what takes all of them; what fails ends counting, and blocks no rank.

    Ranks of a tensor-parallel group may each route a part of the same tokens. vLLM's capturer gathers these parts in every
    layer; here that is done once a step, for all layers, and by a rank that has failed to count, too. Where ranks had all of
    the tokens, the first rank's are taken, which are the same.
    """

    union: GroupUnion | None = None

    def __init__(self, tokens: int, config: Any, counting: Counting) -> None:
        super().__init__(tokens, config)
        self._counting = counting
        self._columns: tuple[torch.Tensor, ...] = ()  # of a step's rows, one for each layer
        # by the configuration, which all ranks have alike: what a step looks like might fail to be read on one
        self._group = get_tp_group() if config.parallel_config.use_sequence_parallel_moe else None

    def capture(self, layer_id: int, topk_ids: torch.Tensor | None, rows: int = 0) -> None:
        """Take a layer's choice.

        Parameters
        ----------
        topk_ids : Tensor, shape (rows, top_k), or None
            None where it could not be had.
        rows : int
            How many the layer has routed, where that is not known from ``topk_ids``.
        """
        rows = rows if topk_ids is None else len(topk_ids)
        own = 0
        with self._counting:
            own = self._tokens(rows)
            if topk_ids is not None and rows in (own, -(-own // self.tp_size)):
                self._column(layer_id, rows).copy_(topk_ids, non_blocking=True)
            elif topk_ids is not None:
                super().capture(layer_id, topk_ids)
        if self.union is None or layer_id != self.union.last:
            return
        if self._group is not None:
            self._gather(rows, own)
        self.union.form(own)

    def _tokens(self, rows: int) -> int:
        """Return how many tokens of the step are this rank's own; the ids of a layer may be those of all ranks, or of a part."""
        ranks = get_forward_context().dp_metadata
        return rows if ranks is None else int(ranks.num_tokens_across_dp_cpu[self.dp_rank])

    def _column(self, layer_id: int, rows: int) -> torch.Tensor:
        """Return where a layer's ids go. All layers of a step have the same rows, so that one operation makes the views for all of them."""
        if not self._columns or len(self._columns[0]) != rows:
            self._columns = self.device_buffer[:rows].unbind(1)
        return self._columns[layer_id]

    def _gather(self, rows: int, own: int) -> None:
        assert self._group is not None  # noqa: S101 - one rank has no parts
        with self._counting:
            if self._counting.stopped:
                self.device_buffer[:rows].fill_(NO_EXPERT)
        parts = self._group.all_gather(self.device_buffer[:rows], dim=0)
        with self._counting:
            self.device_buffer[:own] = parts[:own]


class _Drafting:
    """Counts experts that layers which draft load, pass by pass: each reads its own from memory."""

    def __init__(
        self, layers: int, experts: int, top_k: int, device: torch.device, counting: Counting
    ) -> None:
        self.shape_per_token = (layers, top_k)
        self._counting = counting
        # one more at either end, for ids that name no expert
        self._used = torch.zeros(experts + 2, dtype=torch.int64, device=device)
        self._loaded = torch.zeros((), dtype=torch.int64, device=device)

    def capture(self, layer_id: int, topk_ids: torch.Tensor | None, rows: int = 0) -> None:
        """Take a layer's choice; one that cannot be had loads nothing here."""
        del layer_id, rows
        with self._counting:
            if topk_ids is not None:
                # a copy: the layer goes on with its own ids
                ids = topk_ids.flatten().long().clamp(-1, len(self._used) - 2) + 1
                self._loaded.add_(self._used.zero_().scatter_(0, ids, 1)[1:-1].sum())

    def take(self) -> torch.Tensor:
        """Return how many experts were loaded since the last call."""
        loaded = self._loaded.clone()
        self._loaded.zero_()
        return loaded


def _drafting(modules: Sequence[Any]) -> _Drafting | None:
    """Return what counts the experts of layers that draft; None if they hide them, with a warning."""
    counting = Counting("what drafting loads")  # answers and prompts are counted without it
    try:
        first = modules[0].moe_config
        capturer = _Drafting(
            1 + max(module.layer_id for module in modules),
            first.num_logical_experts,
            first.experts_per_token,
            first.device,
            counting,
        )
        for module in modules:
            _bind(module, capturer, counting)
    except (ValueError, RuntimeError, AttributeError) as error:
        logger.warning("ELDR: what drafting loads is not counted: %s", error)
        return None
    return capturer


def moe_modules(config: Any) -> tuple[list[Any], list[Any]]:
    """Return the mixture-of-experts layers of the model that an engine serves, and those that draft for it.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Raises
    ------
    ValueError
        If there is none, or one whose ids would be lost: fewer layers would be counted than there are.
    """
    compilation = config.compilation_config
    context = compilation.static_forward_context
    modules = {
        name: module
        for name, module in context.items()
        if isinstance(module, MoERunner | RoutedExpertsCaptureSource)
    }
    if not modules:
        raise ValueError("no mixture-of-experts layer found")
    known, drafting = list(modules.values()), []
    if config.speculative_config is not None:
        # the model that is served is built first; heads that draft may go on with its numbers
        first = next(iter(modules))
        if ".layers." not in first:
            raise ValueError(
                f"{first}: layers that draft cannot be distinguished from the model's own by such a name"
            )
        root = _root(first)
        layers = config.model_config.get_total_num_hidden_layers()
        own = [name for name, m in modules.items() if _root(name) == root and m.layer_id < layers]
        known = [modules[name] for name in own]
        drafting = [m for name, m in modules.items() if name not in own]
    named = [name for name in compilation.static_all_moe_layers if name not in modules]
    if named:
        raise ValueError(
            f"layer {named[0]}: its class {type(context.get(named[0])).__name__} captures no routing"
        )
    twice = [layer for layer, n in Counter(module.layer_id for module in known).items() if n > 1]
    if twice:
        raise ValueError(f"layer {twice[0]}: it routes more than once, and only one choice can be captured")
    return known, drafting


def _root(name: str) -> str:
    """Return what stands before the layers in a layer's name."""
    return name.partition(".layers.")[0]


def _bind(module: Any, capturer: Any, counting: Counting) -> None:
    layers, top_k = capturer.shape_per_token
    if not 0 <= module.layer_id < layers:
        raise ValueError(f"layer {module.layer_id}: the model has layers 0 to {layers - 1}")
    if not isinstance(module, MoERunner):
        bind_routed_experts_capturer(torch.nn.ModuleList([module]), capturer)
        return
    if why := _misleading(module.router, top_k):
        raise ValueError(f"layer {module.layer_id}: router {type(module.router).__name__} {why}")
    method = module._quant_method  # noqa: SLF001 - as vLLM's binder
    experts = getattr(getattr(getattr(method, "moe_kernel", None), "impl", None), "fused_experts", None)
    reports = isinstance(experts, FusedMoEExpertsMonolithic) and experts.supports_routing_replay_capture()
    if not method.is_monolithic or reports:
        bind_routed_experts_capturer(torch.nn.ModuleList([module]), capturer)
    elif type(module.router) is FusedTopKRouter:
        recompute(module, partial(capturer.capture, module.layer_id), type(experts).__name__, counting)
    else:
        raise ValueError(
            f"layer {module.layer_id}: kernel {type(experts).__name__} routes inside itself, and router "
            f"{type(module.router).__name__} is not a plain top-k, so its choice cannot be recomputed"
        )


def _misleading(router: Any, top_k: int) -> str:
    """Return why the ids that a router shows are not the experts that a token uses; empty if they are."""
    if isinstance(router, ZeroExpertRouter):
        return "shows expert 0 where a token uses a zero expert"
    # only routers that can fuse have the attribute
    if shared := getattr(router, "num_fused_shared_experts", 0):
        return f"adds {shared} shared experts to every token's choice; serve without fusing them"
    if (chosen := getattr(router, "top_k", top_k)) != top_k:
        return f"chooses {chosen} experts, the model's configuration says {top_k}"
    return ""


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

    @property
    def known(self) -> bool:
        """Whether the mapping is there."""
        return self._slots is not None

    def take(self) -> torch.Tensor | None:
        """Return the mapping, once; None for a step without tokens, or a warm-up."""
        slots, self._slots = self._slots, None
        return slots

    def _take(self, mapping: Any) -> None:
        # a list means micro-batches, with which nothing is counted
        if isinstance(mapping, dict):
            self._slots = mapping.get(self._layer_name)

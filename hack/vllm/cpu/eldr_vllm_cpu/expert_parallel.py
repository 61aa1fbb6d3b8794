"""What vLLM's CPU builds, 0.31 to 0.33, lack for expert parallelism with redundant experts, piece by piece. GPUs need none of it.

==================  =================================================================================================
allow_eplb          the configuration refuses ``--enable-eplb`` but on GPUs
own_experts_only    the CPU kernel ignores which experts a rank holds, and reads beyond its weights (both ranks die of SIGSEGV)
spread_replicas     without Triton, logical expert ids are not mapped to replicas at all; this is what the Triton kernel computes
uneven_collectives  the CPU communicator cannot gather and scatter different numbers of rows, as ranks with data parallelism do, nor
                    gather integers on processors with AVX-512
host_events         EPLB times its rearrangements with events of a device
build_eplb          the CPU model runner makes no EPLB state; weights are moved between steps, by the communicator that works on CPUs
==================  =================================================================================================

``ELDR_CPU_EXPERTS_LOG`` names a file to which each rank, with its number behind the name, writes a line per call of the kernel:
tokens, how many of its experts they activated, and 1 if the rank has requests in this step, else 0: ranks with requests of their own
step on together while any has some, and for a while after. Tests compare that with what the plug-in says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from eldr_vllm_cpu.replace import With, replace

LOG = "ELDR_CPU_EXPERTS_LOG"


def install() -> None:
    """Supply every piece in this process."""
    for piece in (allow_eplb, own_experts_only, spread_replicas, uneven_collectives, host_events, build_eplb):
        piece()


def allow_eplb() -> None:
    """Let the configuration take the platform for a GPU, in the one question that it asks about EPLB."""
    from vllm.config import parallel

    replace(parallel, "current_platform", With(parallel.current_platform, is_cuda_alike=lambda: True))


def own_experts_only() -> None:
    """Give a rank's kernel its own experts; the others' tokens count with weight 0 for an expert that is read anyway."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    stock = CPUUnquantizedExperts.apply

    def apply(  # noqa: PLR0917 - as vLLM calls it
        self: Any,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if expert_map is not None:
            ids = topk_ids.long()
            local = torch.where(ids >= 0, expert_map[ids.clamp(min=0)], -1)
            here = local >= 0
            activated = torch.unique(local[here])
            _log(len(topk_ids), len(activated))
            spare = int(activated[0]) if len(activated) else 0
            topk_ids = torch.where(here, local, spare).to(torch.int32).contiguous()
            topk_weights = torch.where(here, topk_weights, 0.0).contiguous()
        stock(
            self,
            output,
            hidden_states,
            w1,
            w2,
            topk_weights,
            topk_ids,
            activation,
            global_num_experts,
            expert_map,
            *args,
            **kwargs,
        )

    replace(CPUUnquantizedExperts, "apply", apply)


def _log(tokens: int, activated: int) -> None:
    if name := os.environ.get(LOG):
        from vllm.distributed import get_ep_group
        from vllm.forward_context import get_forward_context

        serves = bool(get_forward_context().attn_metadata)
        with Path(f"{name}.{get_ep_group().rank_in_group}").open("a") as log:
            log.write(f"{tokens} {activated} {int(serves)}\n")


def spread_replicas() -> None:
    """Map logical experts to replicas by the hash of the token's number, and count what EPLB places them by."""
    from vllm.model_executor.layers.fused_moe.router import base_router

    def spread(  # noqa: PLR0917 - as vLLM calls it
        topk_ids: torch.Tensor,
        expert_load_view: torch.Tensor,
        logical_to_physical_map: torch.Tensor,
        logical_replica_count: torch.Tensor,
        record_enabled: torch.Tensor,
        num_unpadded_tokens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        known = (topk_ids >= 0) & (topk_ids < len(logical_replica_count))
        experts = torch.where(known, topk_ids, 0).long()
        hashed = (torch.arange(len(topk_ids), dtype=torch.int64) * 2654435769) & 0xFFFFFFFF
        replica = hashed[:, None] % logical_replica_count[experts].clamp(min=1)
        physical = torch.where(known, logical_to_physical_map[experts, replica], -1)
        if bool(record_enabled):
            rows = len(topk_ids) if num_unpadded_tokens is None else int(num_unpadded_tokens)
            counted = physical[:rows].reshape(-1)
            counted = counted[counted >= 0]
            expert_load_view.index_add_(0, counted, torch.ones_like(counted, dtype=expert_load_view.dtype))
        return physical.to(topk_ids.dtype)

    replace(base_router, "eplb_map_to_physical_and_record", spread)


def uneven_collectives() -> None:
    """Gather and scatter rows by padding them to the longest rank's, and by adding everything up."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def gather(self: Any, tensor: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
        rows = sizes or [len(tensor)] * self.world_size
        padded = tensor.new_zeros((max(rows), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded, group=self.device_group)
        return torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])

    def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        assert dim == 0
        if isinstance(input_, list):
            return [gather(self, tensor, sizes) for tensor in input_]
        return gather(self, input_, sizes)

    def reduce_scatterv(
        self: Any, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        assert dim == 0
        total = input_.clone().contiguous()
        dist.all_reduce(total, group=self.device_group)
        rows = sizes or [len(total) // self.world_size] * self.world_size
        start = sum(rows[: self.rank_in_group])
        return total[start : start + rows[self.rank_in_group]].clone()

    of_floats = CpuCommunicator.all_gather

    def all_gather(self: Any, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Gather 32-bit integers as the floats of their bits: on processors with AVX-512 there is no other way."""
        if input_.dtype != torch.int32:
            return of_floats(self, input_, dim)
        return of_floats(self, input_.view(torch.float32), dim).view(torch.int32)

    replace(CpuCommunicator, "all_gather", all_gather)
    replace(CpuCommunicator, "all_gatherv", all_gatherv)
    replace(CpuCommunicator, "reduce_scatterv", reduce_scatterv)


class _Event:
    """An event of a device that has done everything already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end: _Event) -> float:
        """Return that no time went by."""
        del end
        return 0.0


def host_events() -> None:
    """Give EPLB events that need no device."""
    from vllm.distributed.eplb import eplb_state, eplb_utils

    for module in (eplb_state, eplb_utils):
        replace(module, "torch", With(torch, Event=_Event))


def build_eplb() -> None:
    """Make the EPLB state when the weights are loaded, as the GPU's model runner does."""
    from vllm.distributed.eplb.eplb_state import EplbState
    from vllm.model_executor.models.interfaces import get_mixture_of_experts_model
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    stock: Callable[..., None] = CPUModelRunner.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if self.parallel_config.enable_eplb:
            # what a GPU node is told to take waits for an accelerator's stream; by this name it is gloo on CPUs as well
            moves = self.parallel_config.eplb_config
            moves.use_async, moves.communicator = False, "torch_nccl"
            self._moe_model = get_mixture_of_experts_model(self.model)
            self.eplb_state = EplbState(self.parallel_config, self.device)
            if self._moe_model is not None:
                self.eplb_state.add_model(self._moe_model, self.model_config)

    replace(CPUModelRunner, "load_model", load_model)

"""The half in a worker's process: record every token's experts per KV block, sum a prompt's blocks."""

from __future__ import annotations

import math
from typing import Any

import torch
from vllm.logger import init_logger

from eldr.engine.capture.backend import kernels_for
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.capture.kernels import cell_type
from eldr.engine.capture.routing import NO_SLOTS, RoutingCapture, StepSlots, table_memory
from eldr.engine.capture.staging import Staging
from eldr.engine.counting import Counting
from eldr.engine.messages import StepReport
from eldr.engine.prefill.orders import PrefillOrders

logger = init_logger("vllm.eldr")


class PrefillWorker:
    """Counts what a prefill engine computes.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    n_blocks : int
        KV blocks of the engine.
    reports : bool
        Whether this rank counts; the routing is the same on all ranks of a tensor-parallel group.
    counting : Counting, optional
        Of this process; one of its own by default.
    """

    def __init__(
        self,
        config: Any,
        group: CacheGroup,
        n_blocks: int,
        *,
        reports: bool,
        counting: Counting | None = None,
    ) -> None:
        self._slots = StepSlots(group.layer_name)
        self._block_size = group.block_size
        self._orders = PrefillOrders()
        self._counting = counting or Counting("signatures")
        self._table: torch.Tensor | None = None
        with self._counting:
            self._capture = RoutingCapture(config, self._counting)
            if reports:
                self._table = _empty_table(
                    n_blocks, self._capture, config.model_config.get_num_experts(), group.block_size
                )
                self._kernels = kernels_for(self._capture.device)
                self._staging = Staging(self._capture.device)
                # compiled now, not in the first step
                self._kernels.count_blocks(self._table, *self._capture.nothing(), group.block_size)

    def begin(self, orders: PrefillOrders) -> None:
        """Begin a step, before its forward pass."""
        self._orders = orders
        with self._counting:
            self._slots.bind()
            if self._table is not None:
                self._capture.begin()

    @property
    def located(self) -> bool:
        """Whether it is known where the step's tokens lie, so that it can be counted once its forward pass is over."""
        return self._slots.known

    def load(self, attention_metadata: Any) -> None:
        """Take what a full-graph step offers instead of a forward context."""
        with self._counting:
            self._slots.load(attention_metadata)

    def finish(self) -> StepReport | None:
        """Count the step, after its forward pass, and sum the prompts that ended with it."""
        report = None
        with self._counting:
            report = self._finish()
        return StepReport({}, counting=self._counting) if self._counting.stopped else report

    def _finish(self) -> StepReport | None:
        slots, orders = self._slots.take(), self._orders
        if slots is None and orders.runs:
            # rows of this step's blocks keep counts of other prompts, so no later sum can be trusted either
            self._counting.stop(NO_SLOTS)
        if self._table is None or self._counting.stopped:
            return None
        if slots is not None:
            if orders.drafts:
                drafts = self._staging.send(orders.drafts)
                slots = torch.where((slots[:, None] == drafts).any(1), -1, slots)
            self._kernels.count_blocks(
                self._table, self._capture.expert_ids(slots.shape[0]), slots, self._block_size
            )
        if not orders.finishing:
            return None
        sums = {request: self._sum(blocks) for request, blocks in orders.finishing.items()}
        return StepReport(sums, counting=self._counting)

    def _sum(self, blocks: list[int]) -> torch.Tensor:
        assert self._table is not None  # noqa: S101 - _finish() looked
        return self._table.index_select(0, self._staging.send(blocks)).sum(0, dtype=torch.int32)


def _empty_table(n_blocks: int, capture: RoutingCapture, experts: int, block_size: int) -> torch.Tensor:
    shape, kind = (n_blocks + 1, capture.n_layers, experts), cell_type(block_size)
    size = math.prod(shape) * kind.itemsize
    with table_memory(size):
        table = torch.zeros(shape, dtype=kind, device=capture.device)
    logger.info("ELDR: signatures of %d layers x %d experts, %.1f MiB", *shape[1:], size / 2**20)
    return table

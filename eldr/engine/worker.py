"""The half in a worker's process: the experts of prompts, of answers, and of every step.

Prompts are counted per KV block, so that a block that is reused brings its counts. Answers are counted per request: pulled
blocks never pass a forward pass here, and cached ones hold other requests' counts. :mod:`eldr.engine.prefill.provenance` and
:mod:`eldr.engine.decode.tracking` choose which blocks and positions count.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from vllm.distributed.parallel_state import get_ep_group
from vllm.logger import init_logger

from eldr.engine.balance.agreement import gather
from eldr.engine.balance.choice import Balance
from eldr.engine.capture.backend import kernels_for
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.capture.kernels import RequestRows, cell_type, request_rows, take_requests
from eldr.engine.capture.routing import NO_SLOTS, RoutingCapture, StepSlots, table_memory
from eldr.engine.capture.staging import Staging
from eldr.engine.counting import Counting
from eldr.engine.decode.tracking import Plan, n_rows
from eldr.engine.messages import StepReport
from eldr.engine.orders import Orders

logger = init_logger("vllm.eldr")


def agree(config: Any, counting: Counting, worker: Worker | None) -> None:
    """Have ranks with requests of their own count together, or not at all.

    Every rank has to come here, whatever failed on it: the others wait for its report.
    """
    if (over := union_group(config)) is None:
        return
    for stopped in filter(None, gather(counting.stopped, over)):
        counting.stop(stopped)
    if worker is not None and not counting.stopped:
        worker.share()


def union_group(config: Any) -> Any:
    """Return the group whose ranks share a step without sharing its tokens, None if they do share them."""
    return get_ep_group() if config.parallel_config.data_parallel_size > 1 else None


class Worker:
    """Counts what an engine computes.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    n_blocks : int
        KV blocks of the engine.
    prompts : bool
        Whether prompts are counted.
    reports : bool
        Whether this rank counts; the routing is the same on all ranks of a tensor-parallel group.
    balance : Balance, optional
        Who chooses replicas, where vLLM does not.
    counting : Counting, optional
        Of this process; one of its own by default.
    """

    def __init__(
        self,
        config: Any,
        group: CacheGroup,
        n_blocks: int,
        *,
        prompts: bool,
        reports: bool,
        balance: Balance | None = None,
        counting: Counting | None = None,
    ) -> None:
        self._balance = balance
        self._reports = reports
        self._counting = counting or Counting("activations")
        self._slots = StepSlots(group.layer_name)
        self._block_size = group.block_size
        self._orders = Orders()
        self._counts: dict[Any, Any] = {}  # since the last report
        self._capture: Any = None  # a RoutingCapture, if one could be made
        self._prompts: torch.Tensor | None = None
        self._answers: RequestRows | None = None
        with self._counting:
            self._capture = RoutingCapture(config, self._counting, union_group(config))
            if reports:
                if prompts:
                    self._prompts = _empty_blocks(config, n_blocks, self._capture, group.block_size)
                self._answers = _empty_rows(config, n_blocks, self._capture, group.block_size)
                self._kernels = kernels_for(self._capture.device)
                self._staging = Staging(self._capture.device)
                nothing = self._capture.nothing()  # to compile now, not in the first step
                if self._prompts is not None:
                    self._kernels.count_blocks(self._prompts, *nothing, group.block_size)
                self._kernels.count_step(self._answers, *nothing)

    def share(self) -> None:
        """Take part in the union of all ranks from now on."""
        self._capture.share()

    def begin(self, orders: Orders) -> None:
        """Begin a step, before its forward pass."""
        self._orders = orders
        if self._balance is not None:
            self._balance.begin()
        with self._counting:
            self._slots.bind()
            if self._answers is not None and not self._counting.stopped:
                if orders.reset:
                    self._answers.clear()
                    self._capture.clear()
                    self._counts.clear()
                self._capture.begin(orders.requests)
                if orders.plan:
                    self._counts |= _apply(orders.plan, self._answers, self._staging)

    @property
    def located(self) -> bool:
        """Whether it is known where the step's tokens lie, so that it can be counted once its forward pass is over."""
        return self._slots.known

    def load(self, attention_metadata: Any) -> None:
        """Take what a full-graph step offers instead of a forward context."""
        with self._counting:
            self._slots.load(attention_metadata)

    def finish(self) -> StepReport | None:
        """Count the step, after its forward pass."""
        step, report, chosen = self._orders.step, None, None
        if (balance := self._balance) is not None and self._reports and step is not None:
            chosen = balance.figures.clone()
        with self._counting:
            report = self._count(step, chosen)
        if self._counting.stopped:
            with self._counting:
                if self._capture is not None:
                    self._capture.end(failed=True)
            return StepReport({}, step, balance=chosen, counting=self._counting)
        return report

    def _count(self, step: int | None, chosen: torch.Tensor | None) -> StepReport | None:
        slots = self._slots.take()
        if self._answers is not None:
            self._capture.end()
        if slots is None and step is not None:
            # blocks of this step keep counts of other prompts, so no later sum can be trusted either
            self._counting.stop(NO_SLOTS)
        if self._answers is None or self._counting.stopped:
            return None
        union = requests = None
        drafted = self._capture.drafted()
        if slots is not None and step is not None:
            experts = self._capture.expert_ids(slots.shape[0])
            if self._prompts is not None:
                self._count_prompts(self._prompts, experts, slots)
            if self._orders.answers:
                union = self._kernels.count_step(self._answers, experts, slots)
                if (of_all := self._capture.union) is not None:
                    of_ranks = of_all.report.clone()
                    union, requests = of_ranks[:-1], of_ranks[-1]
        if union is None and chosen is None and not self._counts and not self._orders.waited_for:
            return None
        counts, self._counts = self._counts, {}
        return StepReport(
            counts,
            step,
            counting=self._counting,
            union=union,
            drafted=drafted,
            balance=chosen,
            requests=requests,
        )

    def _count_prompts(self, table: torch.Tensor, experts: torch.Tensor, slots: torch.Tensor) -> None:
        """Count a step's tokens per block, and sum the prompts that are complete with it."""
        if self._orders.drafts:
            drafts = self._staging.send(self._orders.drafts)
            slots = torch.where((slots[:, None] == drafts).any(1), -1, slots)
        self._kernels.count_blocks(table, experts, slots, self._block_size)
        for prompt, blocks in self._orders.finishing.items():
            self._counts[prompt] = self._sum(table, blocks)

    def _sum(self, table: torch.Tensor, blocks: list[int]) -> torch.Tensor:
        return table.index_select(0, self._staging.send(blocks)).sum(0, dtype=torch.int32)


def _empty_blocks(config: Any, n_blocks: int, capture: RoutingCapture, block_size: int) -> torch.Tensor:
    shape = (n_blocks + 1, capture.n_layers, config.model_config.get_num_experts())
    kind = cell_type(block_size)
    size = math.prod(shape) * kind.itemsize
    with table_memory(size):
        table = torch.zeros(shape, dtype=kind, device=capture.device)
    logger.info("ELDR: prompts of %d blocks x %d layers x %d experts, %.1f MiB", *shape, size / 2**20)
    return table


def _empty_rows(config: Any, n_blocks: int, capture: RoutingCapture, block_size: int) -> RequestRows:
    model, rows, layers = config.model_config, n_rows(config), capture.n_layers
    experts, top_k = model.get_num_experts(), model.get_num_experts_per_tok()
    window = 2 * (1 + config.num_speculative_tokens)
    numbers = (rows + 1) * layers * (experts + window * (top_k + 1))
    size = numbers * torch.int32.itemsize + 3 * (n_blocks + 1) * torch.int64.itemsize
    with table_memory(size):
        table = request_rows(
            rows,
            n_blocks,
            window=window,
            layers=layers,
            experts=experts,
            top_k=top_k,
            block_size=block_size,
            device=capture.device,
        )
    logger.info(
        "ELDR: answers of %d rows x %d layers x %d experts, %.1f MiB", rows, layers, experts, size / 2**20
    )
    return table


def _apply(plan: Plan, rows: RequestRows, staging: Staging) -> dict[str, torch.Tensor]:
    """Change the tables, and return the counts of the requests that ended."""
    released = [(row, last) for _, row, last in plan.release]
    owners = dict.fromkeys(plan.unmap, (rows.counts.shape[0] - 1, 0, 0))
    owners |= {block: (row, begin, first) for block, row, begin, first in plan.map}
    numbers = list(itertools.chain(*released, owners, *owners.values()))
    ended, blocks, owner = staging.send(numbers).split((2 * len(released), len(owners), 3 * len(owners)))
    counts: tuple[torch.Tensor, ...] = ()
    if released:
        counts = take_requests(rows, *ended.view(-1, 2).unbind(1)).unbind()
    rows.owner.index_copy_(0, blocks, owner.view(-1, 3))
    return dict(zip((request for request, *_ in plan.release), counts, strict=True))

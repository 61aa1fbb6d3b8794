"""Decode engines: what every finished request activated, and the union of experts of every step.

Counts are kept per request, not per KV block: pulled blocks never pass a forward pass here, and cached ones hold other
requests' counts. :mod:`eldr.engine.tracking` says which positions count.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_ep_group
from vllm.logger import init_logger

from eldr.engine import metrics
from eldr.engine.agreement import disagreement, gather
from eldr.engine.backend import kernels_for
from eldr.engine.balance import Balance
from eldr.engine.cache import CacheGroup
from eldr.engine.capture import NO_SLOTS, HiddenRoutingError, RoutingCapture, StepSlots, table_memory
from eldr.engine.compatibility import RanksDisagreeError
from eldr.engine.deadline import PullDeadlines, PullWatch
from eldr.engine.kernels import RequestRows
from eldr.engine.messages import BalanceReport, DecodeOrders, StepReport
from eldr.engine.prefill import scheduled
from eldr.engine.ring import RingWriter, rings_of
from eldr.engine.tracking import Ended, Plan, Tracker
from eldr.engine.watch import MapsWatch
from eldr.wire import ExpertCounts, encode_counts

logger = init_logger("vllm.eldr")

DEFAULT_RECORDS = 1024
_STEPS_AHEAD = 64


def kept_records(extra: Mapping[str, Any]) -> int:
    """Return how many finished requests wait for a reader: ``activation_records`` of the connector's extra settings.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    value = extra.get("activation_records", DEFAULT_RECORDS)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"activation_records of EldrConnector: expected how many finished requests wait for a reader, an integer "
            f"of 1 or more, got {value!r}"
        )
    return value


def union_group(config: Any) -> Any:
    """Return the group whose ranks share a step without sharing its tokens, None if they do share them."""
    return get_ep_group() if config.parallel_config.data_parallel_size > 1 else None


def n_rows(config: Any) -> int:
    """Return how many requests can be counted at once: running ones, and preempted ones that keep their row."""
    return 2 * int(config.scheduler_config.max_num_seqs)


class DecodeWorker:
    """Worker half.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    group : CacheGroup
    n_blocks : int
        KV blocks of the engine.
    reports : bool
        Whether this rank counts; the routing is the same on all ranks of a tensor-parallel group.
    balance : Balance or MapsWatch, optional
        Who chooses replicas, where vLLM does not.

    Attributes
    ----------
    pulls : PullWatch
    """

    def __init__(
        self,
        config: Any,
        group: CacheGroup,
        n_blocks: int,
        *,
        reports: bool,
        balance: Balance | MapsWatch | None = None,
    ) -> None:
        self._balance = balance
        self._stats = metrics.EngineStats()
        self._reports = reports
        self.pulls = PullWatch(self._stats.add_late_pull)
        self._slots = StepSlots(group.layer_name)
        self._step: int | None = None
        self._released: dict[str, Any] = {}
        self._hidden = ""
        self._rows: RequestRows | None = None
        over = union_group(config)
        try:
            self._capture = RoutingCapture(config, over=over)
            if reports:
                experts = config.model_config.get_num_experts()
                self._rows = _empty_rows(n_rows(config), n_blocks, self._capture, experts, group.block_size)
                self._kernels = kernels_for(self._capture.device)
        except HiddenRoutingError as error:
            self._hidden = str(error)
        if over is not None:
            self._hidden = next(filter(None, gather(self._hidden, over)), "")
        if self._hidden:
            logger.warning("ELDR: serving without activations: %s", self._hidden)
        elif over is not None:
            self._capture.share()

    def begin(self, orders: DecodeOrders) -> None:
        """Begin a step, before its forward pass."""
        self._step = orders.step
        self.pulls.begin(orders.pulls)
        self._slots.bind()
        if self._balance is not None:
            self._balance.begin()
        if self._rows is not None and not self._hidden:
            self._capture.begin(orders.requests)
            if orders.plan:
                self._released |= _apply(orders.plan, self._rows)

    def load(self, attention_metadata: Any) -> None:
        """Take what a full-graph step offers instead of a forward context."""
        self._slots.load(attention_metadata)

    def finish(self) -> StepReport | None:
        """Count the step, after its forward pass."""
        slots, step = self._slots.take(), self._step
        if self._rows is not None:
            self._capture.end()
        if slots is None and step is not None and not self._hidden:
            self._hidden = NO_SLOTS
            logger.error("ELDR: serving without activations from now on: %s", NO_SLOTS)
        chosen = self._balance_report() if self._reports and step is not None else None
        if self._hidden:
            return StepReport({}, step, hidden=self._hidden, balance=chosen)
        if self._rows is None:
            return None
        union = requests = None
        if slots is not None and step is not None:
            union = self._kernels.count_step(self._rows, self._capture.expert_ids(slots.shape[0]), slots)
            if (of_all := self._capture.union) is not None:
                union, requests = of_all.counts.clone(), of_all.requests * of_all.tells
        if union is None and chosen is None and not self._released:
            return None
        released, self._released = self._released, {}
        return StepReport(released, step, union, balance=chosen, requests=requests)

    def _balance_report(self) -> BalanceReport | None:
        if (balance := self._balance) is None:
            return None
        return BalanceReport(balance.figures.clone(), balance.trouble.clone(), balance.decision_seconds)

    def stats(self) -> metrics.EngineStats | None:
        """Return what happened since the last call; the ranks see the same pulls, so that one of them counts."""
        return self._stats.take() if self._reports else None


def _empty_rows(
    rows: int, n_blocks: int, capture: RoutingCapture, experts: int, block_size: int
) -> RequestRows:
    shape, device = (rows + 1, capture.n_layers, experts), capture.device
    size = math.prod(shape) * torch.int32.itemsize + 2 * (n_blocks + 1) * torch.int64.itemsize
    with table_memory(size):
        table = RequestRows(
            torch.zeros(shape, dtype=torch.int32, device=device),
            row_of_block=torch.full((n_blocks + 1,), rows, dtype=torch.int64, device=device),
            first_offset=torch.zeros(n_blocks + 1, dtype=torch.int64, device=device),
            block_size=block_size,
        )
    logger.info("ELDR: activations of %d rows x %d layers x %d experts, %.1f MiB", *shape, size / 2**20)
    return table


def _apply(plan: Plan, rows: RequestRows) -> dict[str, torch.Tensor]:
    """Change the tables, and return the counts of the requests that ended."""
    device, released = rows.counts.device, {}
    for request, row in plan.release:
        released[request] = rows.counts[row].clone()
        rows.counts[row].zero_()
    if plan.unmap:
        rows.row_of_block[torch.tensor(plan.unmap, device=device)] = rows.counts.shape[0] - 1
    if plan.map:
        changes = torch.tensor(plan.map, dtype=torch.int64, device=device)
        rows.row_of_block[changes[:, 0]] = changes[:, 1]
        rows.first_offset[changes[:, 0]] = changes[:, 2]
    return released


class DecodeScheduler:
    """Scheduler half.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    group : CacheGroup
    records : int
        Finished requests that wait for a reader.

    Attributes
    ----------
    pulls : PullDeadlines
    """

    def __init__(self, config: Any, group: CacheGroup, records: int) -> None:
        model = config.model_config
        self._top_k = model.get_num_experts_per_tok()
        self._group = group
        self._tracker = Tracker(n_rows(config), group.block_size)
        self._experts = model.get_num_experts()
        self._ended: dict[str, Ended] = {}
        self._empty: list[tuple[str, Ended]] = []  # ended without a token to count
        self._steps = 0
        # step, when it was scheduled, its requests; bounded, as a step that fails is never reported
        self._begun: deque[tuple[int, float, int]] = deque(maxlen=_STEPS_AHEAD)
        self._last_update = 0.0
        self._stats = metrics.EngineStats()
        self.pulls = PullDeadlines(self._stats.add_late_pull)
        cells = model.get_total_num_hidden_layers() * self._experts
        base64_of_uint16 = -(-cells * 2 // 3) * 4
        parallel = config.parallel_config
        rings = rings_of(config.instance_id, parallel.data_parallel_size)
        # an engine of one rank may have been told another number
        own = rings[parallel.data_parallel_rank if len(rings) > 1 else 0]
        self._ring = RingWriter(own, records, base64_of_uint16 + 1024)

    def add(self, request: Any) -> None:
        """Follow a request."""
        self.pulls.add(request)
        if request.resumable:  # prompt and answer take turns
            self._stats.add_record("unavailable")
            return
        self._tracker.add(request.request_id, request.num_prompt_tokens)

    def orders(self, output: Any) -> DecodeOrders:
        """Return what the worker must change before a step."""

        def blocks_of(request: str) -> list[int]:
            blocks: list[int] = output.kv_connector_block_state.get_block_ids(request)[self._group.index]
            return blocks

        plan = self._tracker.step(scheduled(output), output.preempted_req_ids or (), blocks_of)
        pulls = self.pulls.pulls(output.num_scheduled_tokens)
        if not output.total_num_scheduled_tokens:
            return DecodeOrders(plan, pulls=pulls)
        self._steps += 1
        self._begun.append((self._steps, time.perf_counter(), len(output.num_scheduled_tokens)))
        return DecodeOrders(plan, self._steps, pulls, len(output.num_scheduled_tokens))

    def end(self, request: Any) -> None:
        """Keep a request until the worker reports its counts, with the next step."""
        self.pulls.end(request)
        ended = self._tracker.end(request.request_id)
        if ended is None:
            return
        if not ended.tokens:
            self._empty.append((request.request_id, ended))
        elif ended.row is None:
            self._stats.add_record("unavailable")
        else:
            self._ended[request.request_id] = ended

    def update(self, report: Any) -> None:
        """Take the worker's report of a step.

        Raises
        ------
        RanksDisagreeError
            If the ranks chose replicas differently: vLLM ends an engine whose scheduler raises.
        """
        if not isinstance(report, StepReport):
            return
        requests = report.requests()
        if (chosen := report.balance()) is not None:
            if chosen.trouble:  # before this step's tokens leave the engine
                raise RanksDisagreeError(disagreement("ranks disagreed in a step"))
            if requests != 0:
                self._stats.add_balance(chosen.figures, chosen.decision_seconds)
        if report.hidden:
            for _ in (*self._ended, *self._empty):
                self._stats.add_record("unavailable")
            self._ended.clear()
            self._empty.clear()
            self._begun.clear()
            return
        counts, union = report.arrived()
        if union is not None:
            # one token was generated, and never fed: a reader that knows need not wait
            nothing = np.zeros((len(union), self._experts), np.uint16)
            for name, short in self._empty:
                self._publish(name, nothing, short)
            self._empty.clear()
        for request, value in counts.items():
            if (ended := self._ended.pop(request, None)) is not None:
                self._publish(request, value, ended)
        if union is not None and report.step is not None:
            self._measure(report.step, union, requests)

    def _measure(self, step: int, union: np.ndarray, of_all: int | None) -> None:
        now = time.perf_counter()
        while self._begun and self._begun[0][0] < step:
            self._begun.popleft()
        if not self._begun or self._begun[0][0] != step:
            return
        _, begun, requests = self._begun.popleft()
        # steps scheduled ahead of time overlap: a step lasts from the end of the one before it
        seconds, self._last_update = now - max(begun, self._last_update), now
        if of_all != 0:
            self._stats.add_step(union, requests if of_all is None else of_all, seconds)

    def _publish(self, request: str, counts: np.ndarray, ended: Ended) -> None:
        exact = ended.complete and bool((counts.sum(1, dtype=np.int64) == ended.tokens * self._top_k).all())
        kind = np.uint16 if counts.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32
        record = {
            "request_id": request,
            **encode_counts(ExpertCounts(counts.astype(kind), self._top_k, ended.tokens, exact)),
        }
        written = self._ring.write(json.dumps(record, separators=(",", ":")).encode())
        self._stats.add_record("unavailable" if not written else "exact" if exact else "inexact")

    def stats(self) -> metrics.EngineStats | None:
        """Return what happened since the last call."""
        return self._stats.take()

    def close(self) -> None:
        """Remove the ring."""
        self._ring.close()

"""The half in the scheduler's process: which positions count, finished requests for readers, steps for Prometheus."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from eldr.engine import metrics
from eldr.engine.balance.agreement import disagreement
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.capture.kernels import FAILED
from eldr.engine.counting import Counting
from eldr.engine.decode.deadline import PullDeadlines
from eldr.engine.decode.orders import DecodeOrders
from eldr.engine.decode.ring import RingWriter, rings_of
from eldr.engine.decode.tracking import Ended, Tracker, n_rows
from eldr.engine.decode.windows import Windows
from eldr.engine.errors import HiddenRoutingError, RanksDisagreeError, UnsupportedEngineError
from eldr.engine.messages import StepReport
from eldr.engine.steps import blocks_in, scheduled
from eldr.wire import ExpertCounts, encode_counts

DEFAULT_RECORDS = 1024
MOST_RECORDS = 1 << 20
_RECORDS = "activation_records"
_STEPS_AHEAD = 64


def kept_records(extra: Mapping[str, Any]) -> int:
    """Return how many finished requests wait for a reader: ``activation_records`` of the connector's extra settings.

    Raises
    ------
    UnsupportedEngineError
        If it is no positive integer, or more than :data:`MOST_RECORDS`; if there are other settings, which nothing would read.
    """
    if unknown := ", ".join(sorted(extra.keys() - {_RECORDS})):
        raise UnsupportedEngineError(
            f"kv_connector_extra_config of EldrConnector: unknown {unknown}; there is {_RECORDS}. "
            "Settings of a transport belong to its own entry in the list of connectors"
        )
    value = extra.get(_RECORDS, DEFAULT_RECORDS)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RECORDS:
        raise UnsupportedEngineError(
            f"activation_records of EldrConnector: expected how many finished requests wait for a reader, an integer "
            f"from 1 to {MOST_RECORDS}, got {value!r}"
        )
    return value


class DecodeScheduler:
    """Follows requests from their first step to their record.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    windows : Windows
    records : int
        Finished requests that wait for a reader.
    counting : Counting, optional
        Of this process; one of its own by default.

    Attributes
    ----------
    pulls : PullDeadlines
    watches : bool
        Whether all pulls in flight are watched; once they are not, nothing must be pulled any more.
    """

    def __init__(
        self,
        config: Any,
        group: CacheGroup,
        windows: Windows,
        records: int,
        counting: Counting | None = None,
    ) -> None:
        model = config.model_config
        self._top_k = model.get_num_experts_per_tok()
        self._group = group
        self._tracker = Tracker(n_rows(config), group.block_size)
        self._experts = model.get_num_experts()
        self._ended: dict[str, Ended] = {}
        self.watches = True
        self._empty: list[tuple[str, Ended]] = []  # ended without a token to count
        self._steps = 0
        self._reset = False
        # step, when it was scheduled, its requests, their drafts and context; bounded, as a step that fails is never reported
        self._begun: deque[tuple[int, float, int, int, int]] = deque(maxlen=_STEPS_AHEAD)
        self._last_update = 0.0
        self._stats = metrics.EngineStats()
        self._counting = counting or Counting("activations")
        # a pull that was refused must stay so, whatever its count does
        guarded = self._counting.guarded
        self.pulls = PullDeadlines(
            guarded(self._stats.add_late_pull), guarded(self._stats.add_cut_prompt), windows.cut
        )
        self._ring: RingWriter | None = None
        with self._counting:
            self._ring = self._open_ring(config, records)

    def _open_ring(self, config: Any, records: int) -> RingWriter:
        cells = config.model_config.get_total_num_hidden_layers() * self._experts
        base64_of_uint16 = -(-cells * 2 // 3) * 4
        parallel = config.parallel_config
        rings = rings_of(config.kv_transfer_config.engine_id, parallel.data_parallel_size)
        # an engine of one rank may have been told another number
        own = rings[parallel.data_parallel_rank if len(rings) > 1 else 0]
        try:
            return RingWriter(own, records, base64_of_uint16 + 1024)
        except OSError as error:
            raise HiddenRoutingError(
                f"no shared memory for finished requests: {own}: {error.strerror or error}; mount a larger /dev/shm, or lower "
                f"activation_records={records} of EldrConnector"
            ) from error

    def add(self, request: Any) -> None:
        """Follow a request.

        Raises
        ------
        Exception
            Only if its deadline could not be taken: it must not be pulled then.
        """
        self.pulls.add(request)
        with self._counting:
            if request.resumable:  # prompt and answer take turns
                self._stats.add_record("unavailable")
            elif not self._counting.stopped:
                self._tracker.add(
                    request.request_id, request.num_prompt_tokens, lambda: request.num_output_tokens
                )

    def allocated(self, request: Any) -> None:
        """Take that a request has its blocks."""
        with self._counting:
            self.pulls.allocated(request)
            return
        self.watches = False

    def reset(self) -> None:
        """Forget what running requests have counted, and have the worker forget it with the next step."""
        self._reset = True
        with self._counting:
            self._tracker.reset()
            for _ in self._ended:
                self._stats.add_record("unavailable")
            self._ended.clear()

    def orders(self, output: Any) -> DecodeOrders:
        """Return what the worker must change before a step."""
        orders = DecodeOrders()
        watched = False
        with self._counting:
            orders.pulls = self.pulls.pulls(output.num_scheduled_tokens)
            watched = True
        self.watches = self.watches and watched
        with self._counting:
            self._order(output, orders)
        return orders

    def _order(self, output: Any, orders: DecodeOrders) -> None:
        requests = scheduled(output)
        if output.total_num_scheduled_tokens:
            self._steps += 1
            orders.step, orders.requests = self._steps, len(output.num_scheduled_tokens)
            drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
            context = sum(before + tokens for _, before, tokens in requests)
            self._begun.append((self._steps, time.perf_counter(), orders.requests, drafts, context))
        orders.reset, self._reset = self._reset, False
        if self._counting.stopped:
            self._tracker.clear()
            return
        orders.plan = self._tracker.step(
            requests, output.preempted_req_ids or (), blocks_in(output, self._group.index)
        )

    def end(self, request: Any) -> None:
        """Keep a request until the worker reports its counts, with the next step."""
        with self._counting:
            self.pulls.end(request)
        with self._counting:
            if not self._counting.stopped:
                self._end(request)
                return
        if request.num_output_tokens and not request.resumable:
            self._stats.add_record("unavailable")

    def _end(self, request: Any) -> None:
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
        chosen = None
        with self._counting:
            chosen = report.balance()
        if chosen is not None and chosen.trouble:  # before this step's tokens leave the engine
            raise RanksDisagreeError(disagreement("ranks disagreed in a step"))
        with self._counting:
            if chosen is not None and report.requests() != 0:
                self._stats.add_balance(chosen.figures, chosen.decision_seconds)
            self._counting.stopped = self._counting.stopped or report.hidden  # the worker has logged it
            if report.requests() == FAILED:
                self._counting.stop("another rank of this engine failed to count")
            if not self._counting.stopped:
                self._take(report)
        if self._counting.stopped:
            for _ in (*self._ended, *self._empty):
                self._stats.add_record("unavailable")
            self._ended.clear()
            self._empty.clear()
            self._begun.clear()

    def _take(self, report: StepReport) -> None:
        counts, union = report.arrived()
        if union is not None:
            # one token was generated, and never fed: a reader that knows need not wait
            nothing = np.zeros((len(union), self._experts), np.uint16)
            while self._empty:
                name, short = self._empty[-1]
                self._publish(name, nothing, short)
                self._empty.pop()  # once it is published: what fails before is told as unavailable
        for request, value in counts.items():
            if (ended := self._ended.get(request)) is not None:
                self._publish(request, value, ended)
                del self._ended[request]
        if union is not None and report.step is not None:
            self._measure(report.step, union, report.requests())

    def _measure(self, step: int, union: np.ndarray, of_all: int | None) -> None:
        now = time.perf_counter()
        while self._begun and self._begun[0][0] < step:
            self._begun.popleft()
        if not self._begun or self._begun[0][0] != step:
            return
        _, begun, requests, drafts, context = self._begun.popleft()
        # steps scheduled ahead of time overlap: a step lasts from the end of the one before it
        seconds, self._last_update = now - max(begun, self._last_update), now
        if of_all == 0:
            return
        together = requests if of_all is None else of_all
        # ranks with requests of their own draft about alike, and hold about as much
        drafts, context = (round(one * together / requests) for one in (drafts, context))
        self._stats.add_step(union, together, together + drafts, context, seconds)

    def _publish(self, request: str, counts: np.ndarray, ended: Ended) -> None:
        exact = ended.complete and bool((counts.sum(1, dtype=np.int64) == ended.tokens * self._top_k).all())
        kind = np.uint16 if counts.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32
        record = {
            "request_id": request,
            **encode_counts(ExpertCounts(counts.astype(kind), self._top_k, ended.tokens, exact)),
        }
        assert self._ring is not None  # noqa: S101 - an engine without one does not count
        written = self._ring.write(json.dumps(record, separators=(",", ":")).encode())
        self._stats.add_record("unavailable" if not written else "exact" if exact else "inexact")

    def stats(self) -> metrics.EngineStats | None:
        """Return what happened since the last call."""
        with self._counting:
            self._stats.tell(self._counting.stopped)
            return self._stats.take()
        return metrics.stopped()

    def close(self) -> None:
        """Remove the ring."""
        if self._ring is not None:
            self._ring.close()

"""The half in the scheduler's process: which tokens count, finished requests for readers, steps for Prometheus."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eldr.contract import ELDR_KEY
from eldr.engine import metrics
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.capture.kernels import FAILED
from eldr.engine.capture.union import MIXED
from eldr.engine.counting import Counting
from eldr.engine.decode.deadline import PullDeadlines
from eldr.engine.decode.ring import RingWriter, rings_of
from eldr.engine.decode.tracking import Ended, Tracker, n_rows
from eldr.engine.decode.windows import Windows
from eldr.engine.errors import HiddenRoutingError, UnsupportedEngineError
from eldr.engine.messages import StepReport, encoded
from eldr.engine.orders import Orders
from eldr.engine.prefill.prompts import Prompts, unavailable
from eldr.engine.steps import blocks_in, is_pulled, scheduled

logger = logging.getLogger("vllm.eldr")

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


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    began: float
    requests: int
    fed: int
    context: int


class Scheduler:
    """Follows requests from their first step to their record.

    A request whose prompt another engine pulls has its prompt's counts in its answer, and leaves no record. Every other one leaves
    a record of its answer, with the prompt's counts where the engine computes prompts for others, too.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    windows : Windows
    records : int
        Finished requests that wait for a reader.
    hash_size : int, optional
        Tokens from one of a request's block hashes to the next, on engines that count prompts.
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
        *,
        hash_size: int | None = None,
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
        self._nothing: np.ndarray | None = None  # their counts, once it is known how many layers these have
        self._steps = 0
        self._reset = False
        self._begun: deque[_Step] = deque(maxlen=_STEPS_AHEAD)  # a step that fails is never reported
        self._last_update = 0.0
        self._stats = metrics.EngineStats()
        self._counting = counting or Counting("activations")
        # a pull that was refused must stay so, whatever its count does
        guarded = self._counting.guarded
        self.pulls = PullDeadlines(
            guarded(self._stats.add_late_pull), guarded(self._stats.add_cut_prompt), windows.cut
        )
        self._prompts: Prompts | None = None
        self._ring: RingWriter | None = None
        with self._counting:
            if hash_size is not None:
                self._prompts = Prompts(config, group, hash_size, self._stats.add_record)
            try:
                self._ring = self._open_ring(config, records)
            except HiddenRoutingError as error:
                if self._prompts is None:
                    raise
                logger.error("ELDR: serving without records of whole requests: %s", error)  # noqa: TRY400

    def _open_ring(self, config: Any, records: int) -> RingWriter:
        cells = config.model_config.get_total_num_hidden_layers() * self._experts
        base64_of_uint16 = -(-cells * 2 // 3) * 4
        counts = 1 if self._prompts is None else 2
        parallel = config.parallel_config
        rings = rings_of(config.kv_transfer_config.engine_id, parallel.data_parallel_size)
        # an engine of one rank may have been given another number
        own = rings[parallel.data_parallel_rank if len(rings) > 1 else 0]
        try:
            return RingWriter(own, records, counts * base64_of_uint16 + 1024)
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
            if self._prompts is not None:
                self._prompts.add(request)
                if is_pulled(request):
                    return
            if request.resumable or self._ring is None:  # prompt and answer take turns
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
            if self._prompts is not None:
                self._prompts.reset()
            self._tracker.reset()
            for _ in self._ended:
                self._stats.add_record("unavailable")
            self._ended.clear()

    def orders(self, output: Any) -> Orders:
        """Return what the worker must do in a step."""
        orders = Orders()
        watched = False
        with self._counting:
            orders.pulls = self.pulls.pulls(output.num_scheduled_tokens)
            watched = True
        self.watches = self.watches and watched
        with self._counting:
            self._order(output, orders)
        return orders

    def _order(self, output: Any, orders: Orders) -> None:
        requests = scheduled(output)
        if fed := output.total_num_scheduled_tokens:
            self._steps += 1
            orders.step = self._steps
            decoded = len(requests) + sum(map(len, output.scheduled_spec_decode_tokens.values()))
            orders.requests = len(requests) + (MIXED if fed != decoded else 0)
            context = sum(before + tokens for _, before, tokens in requests)
            self._begun.append(_Step(self._steps, time.perf_counter(), orders.requests, fed, context))
        orders.reset, self._reset = self._reset, False
        orders.waited_for = bool(self._empty)
        if self._counting.stopped:
            self._tracker.clear()
            return
        if self._prompts is not None:
            self._prompts.order(output, orders)
        orders.answers = self._prompts is None or len(self._tracker) > 0
        orders.plan = self._tracker.step(
            requests, output.preempted_req_ids or (), blocks_in(output, self._group.index)
        )

    def end(self, request: Any) -> dict[str, Any] | None:
        """Return what goes into ``kv_transfer_params`` of a prompt that another engine pulls.

        Other requests are kept until the worker reports their counts, with the next step.
        """
        with self._counting:
            self.pulls.end(request)
        if self._prompts is not None and is_pulled(request):
            with self._counting:
                value = self._prompts.end(request)
                return None if value is None else {ELDR_KEY: value}
            self._stats.add_record("unavailable")
            return {ELDR_KEY: unavailable(self._counting.stopped)}
        with self._counting:
            prompt = None if self._prompts is None else self._prompts.end(request)
            if not self._counting.stopped:
                self._end(request, prompt)
                return None
        if request.num_output_tokens and not request.resumable and self._ring is not None:
            self._stats.add_record("unavailable")
        return None

    def _end(self, request: Any, prompt: dict[str, Any] | None) -> None:
        ended = self._tracker.end(request.request_id, prompt)
        if ended is None or not request.num_output_tokens:
            return
        if not ended.tokens:
            self._empty.append((request.request_id, ended))
            if self._prompts is None:  # else its prompt's counts may come with the step's report
                self._publish_empty()
        elif ended.row is None:
            self._stats.add_record("unavailable")
        else:
            self._ended[request.request_id] = ended

    def update(self, report: Any) -> None:
        """Take the worker's report of a step."""
        if isinstance(report, StepReport):
            with self._counting:
                self._update(report)
        if self._counting.stopped:
            for _ in (*self._ended, *self._empty):
                self._stats.add_record("unavailable")
            self._ended.clear()
            self._empty.clear()
        with self._counting:
            if self._prompts is not None:
                self._prompts.settle(self._counting.stopped)

    def _update(self, report: StepReport) -> None:
        figures = report.figures()
        requests = figures.get("requests")
        step = self._measured(report.step, None if requests is None else int(requests))
        if step is not None and "balance" in figures:
            self._stats.add_balance(figures["balance"])
        self._counting.stopped = self._counting.stopped or report.hidden  # the worker has logged it
        if requests is not None and requests == FAILED:
            self._counting.stop("another rank of this engine failed to count")
        if not self._counting.stopped:
            self._take(report.counts(), figures, step)

    def _take(
        self,
        counts: Mapping[Any, np.ndarray],
        figures: Mapping[str, Any],
        step: tuple[int, int, int, float] | None,
    ) -> None:
        union = figures.get("union")
        for key, value in counts.items():
            if self._prompts is not None and isinstance(key, tuple):
                self._prompts.take(key, value)
        if union is not None and self._nothing is None:
            self._nothing = np.zeros((len(union), self._experts), np.uint16)
        self._publish_empty()
        for key, value in counts.items():
            if (ended := self._ended.get(key)) is not None:
                self._publish(key, value, ended)
                del self._ended[key]
        if union is not None and step is not None:
            self._stats.add_step(union, int(figures.get("drafted", 0)), *step)

    def _measured(self, number: int | None, of_all: int | None) -> tuple[int, int, int, float] | None:
        """Return the requests of a step, the tokens that it fed and held, on all ranks, and its seconds.

        None of a step that another rank reports, and of one that computes prompts: not its experts alone make that one long.
        """
        if number is None:
            return None
        while self._begun and self._begun[0].number < number:
            self._begun.popleft()
        if not self._begun or self._begun[0].number != number:
            return None
        step, now = self._begun.popleft(), time.perf_counter()
        # steps scheduled ahead of time overlap: a step lasts from the end of the one before it
        seconds, self._last_update = now - max(step.began, self._last_update), now
        together = step.requests if of_all is None else of_all
        if step.requests >= MIXED or not 0 < together < MIXED:
            return None
        # ranks with requests of their own draft about alike, and hold about as much
        fed, context = (round(own * together / step.requests) for own in (step.fed, step.context))
        return together, fed, context, seconds

    def _publish(self, request: str, counts: np.ndarray, ended: Ended) -> None:
        record = {"request_id": request} | encoded(counts, self._top_k, ended.tokens, complete=ended.complete)
        exact, prompt = record["exact"], ended.prompt or {}
        if self._prompts is not None:
            exact = exact and prompt.get("exact", False)
        # counts of a long prompt may be too wide for a slot
        written = self._write(record | {"prompt": prompt} if "counts" in prompt else record) or self._write(
            record
        )
        self._stats.add_record("unavailable" if not written else "exact" if exact else "inexact")

    def _publish_empty(self) -> None:
        """Publish what generated one token, which was never fed: a reader need not wait for it."""
        while self._empty and self._nothing is not None:
            name, short = self._empty[-1]
            self._publish(name, self._nothing, short)
            self._empty.pop()  # once it is published: what fails before is counted as unavailable

    def _write(self, record: dict[str, Any]) -> bool:
        assert self._ring is not None  # noqa: S101 - without one, no request is followed
        return self._ring.write(json.dumps(record, separators=(",", ":")).encode())

    def stats(self) -> metrics.EngineStats | None:
        """Return what happened since the last call."""
        with self._counting:
            self._stats.set_stopped(self._counting.stopped)
            return self._stats.take()
        return metrics.stopped()

    def close(self) -> None:
        """Remove the ring."""
        if self._ring is not None:
            self._ring.close()

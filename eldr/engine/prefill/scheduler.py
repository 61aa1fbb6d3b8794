"""The half in the scheduler's process: which prompts are complete, and their counts in the answer.

References
----------
.. [1] ELDR, arXiv 2607.00466: prompt signatures are top-k counts; they survive prefix caching if kept per KV block.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from vllm.v1.request import RequestStatus

from eldr.engine import metrics
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.counting import Counting
from eldr.engine.messages import StepReport
from eldr.engine.prefill.orders import PrefillOrders
from eldr.engine.prefill.provenance import CountedBlocks
from eldr.engine.steps import blocks_in, scheduled, transfer_of
from eldr.wire import ExpertCounts, encode_counts


class PrefillScheduler:
    """Follows prompts until their counts are handed out.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    hash_size : int
        Tokens from one of a request's block hashes to the next.
    counting : Counting, optional
        Of this process; one of its own by default.
    """

    def __init__(
        self, config: Any, group: CacheGroup, hash_size: int, counting: Counting | None = None
    ) -> None:
        self._top_k = config.model_config.get_num_experts_per_tok()
        self._group = group
        # positions that the scheduler may take for computed, though their drafts are rejected
        self._unsure = 2 * (1 + config.num_speculative_tokens)
        self._blocks = CountedBlocks(group.block_size, hash_size)
        self._numbers = itertools.count()
        # request id -> prompt tokens and a number of its own, as ids may come again; until its signature was handed out
        self._waiting: dict[str, tuple[int, int]] = {}
        self._partial: set[str] = set()  # requests with blocks that were not computed here
        self._streaming: set[str] = set()
        self._ready: dict[str, dict[str, Any]] = {}
        self._handed_out: dict[str, dict[str, Any]] = {}
        self._counting = counting or Counting("signatures")
        self._stats = metrics.EngineStats()

    def add(self, request: Any) -> None:
        """Follow a request, and its prompt if another engine will pull its KV."""
        remote = transfer_of(request).get("do_remote_decode")
        with self._counting:
            if remote and request.resumable:  # its prompt grows while it runs
                self._streaming.add(request.request_id)
                self._stats.add_record("unavailable")
            elif remote:
                self._waiting[request.request_id] = request.num_prompt_tokens, next(self._numbers)
            self._blocks.add(request.request_id, request.block_hashes)

    def orders(self, output: Any) -> PrefillOrders:
        """Return which prompts are complete with this step."""
        orders = PrefillOrders(runs=bool(output.total_num_scheduled_tokens))
        with self._counting:
            if not self._counting.stopped:
                self._complete(output, orders)
        return orders

    def _complete(self, output: Any, orders: PrefillOrders) -> None:
        steps, blocks_of = scheduled(output), blocks_in(output, self._group.index)
        # all of them first: a prompt may share a block that another request of the same step computes
        self._blocks.computed(steps, blocks_of)
        if drafts := output.scheduled_spec_decode_tokens:
            for request, computed, tokens in steps:
                if of_it := len(drafts.get(request, ())):
                    end = computed + tokens
                    orders.drafts += self._leave_out(request, end - of_it, end, blocks_of(request))
        for request, computed, tokens in steps if self._waiting else ():
            prompt, number = self._waiting.get(request, (0, 0))
            if not computed < prompt <= computed + tokens:
                continue
            blocks = blocks_of(request)[: -(-prompt // self._group.block_size)]
            orders.finishing[request, number] = counted = self._blocks.counted(request, blocks)
            if len(counted) < len(blocks):
                self._partial.add(request)
            else:
                self._partial.discard(request)

    def _leave_out(self, request: str, first: int, end: int, blocks: list[int]) -> list[int]:
        """Return the slots of drafts right behind a prompt; others spoil their blocks, as it is not known where they are."""
        size = self._group.block_size
        if self._waiting.get(request, (0, 0))[0] == first:
            self._blocks.spoil(blocks[-(-first // size) : -(-end // size)])  # a draft began them, uncounted
            return [blocks[at // size] * size + at % size for at in range(first, end)]
        self._blocks.spoil(blocks[max(0, first - self._unsure) // size : -(-end // size)])
        return []

    def end(self, request: Any) -> dict[str, Any] | None:
        """Return what goes into ``kv_transfer_params``.

        vLLM asks before it hands over the step's report, but sends the answer after that: the object is filled in
        between, by :meth:`update`.
        """
        with self._counting:
            return self._end(request)
        if not transfer_of(request).get("do_remote_decode"):
            return None
        with self._counting:
            self._stats.add_record("unavailable")
        return {"eldr": unavailable(self._counting.stopped)}

    def _end(self, request: Any) -> dict[str, Any] | None:
        name = request.request_id
        self._blocks.forget(name)
        if name in self._streaming:
            self._streaming.remove(name)
            return {"eldr": unavailable("the prompt was streamed in")}
        if name not in self._waiting:
            return None
        if request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR):
            self._forget(name)
            self._ready.pop(name, None)
            return None
        value = self._ready.pop(name, None)
        if value is None:
            value = self._handed_out[name] = unavailable(
                self._counting.stopped or "no counts for this request"
            )
        else:
            self._forget(name)
            self._stats.add_record("exact" if value["exact"] else "inexact")
        return {"eldr": value}

    def _forget(self, request: str) -> None:
        self._waiting.pop(request, None)
        self._partial.discard(request)

    def update(self, report: Any) -> None:
        """Take the worker's report of a step."""
        if isinstance(report, StepReport):
            with self._counting:
                self._counting.stopped = self._counting.stopped or report.hidden  # the worker has logged it
                if not self._counting.stopped:
                    for (request, number), counts in report.arrived()[0].items():
                        self._pop(request, number, counts)
        handed_out, self._handed_out = self._handed_out, {}
        for request, value in handed_out.items():
            self._forget(request)
            if "counts" not in value:
                value["unavailable"] = self._counting.stopped or value["unavailable"]
                self._stats.add_record("unavailable")

    def _pop(self, request: str, number: int, counts: np.ndarray) -> None:
        tokens, wanted = self._waiting.get(request, (0, -1))
        if number != wanted:
            return  # aborted meanwhile, and perhaps another of the same id has come
        sums_up = bool((counts.sum(1, dtype=np.int64) == tokens * self._top_k).all())
        exact = sums_up and request not in self._partial
        kind = np.uint16 if tokens <= np.iinfo(np.uint16).max else np.uint32
        value = encode_counts(ExpertCounts(counts.astype(kind), self._top_k, tokens, exact))
        target = self._handed_out.get(request)
        if target is None:
            self._ready[request] = value
        else:
            target.clear()
            target.update(value)
            self._stats.add_record("exact" if exact else "inexact")

    def stats(self) -> metrics.EngineStats | None:
        """Return what happened since the last call."""
        with self._counting:
            self._stats.tell(self._counting.stopped)
            return self._stats.take()
        return metrics.stopped()

    def close(self) -> None:
        """Nothing is held."""


def unavailable(reason: str) -> dict[str, Any]:
    """Return what an answer says in place of counts."""
    return {"v": 1, "unavailable": reason}

"""The prompts of an engine that computes them: which are complete, and their counts for whoever answers.

References
----------
.. [1] ELDR, arXiv 2607.00466: prompt signatures are top-k counts; they survive prefix caching if kept per KV block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.v1.request import RequestStatus

from eldr.engine.capture.cache import CacheGroup
from eldr.engine.messages import encoded
from eldr.engine.orders import Orders
from eldr.engine.prefill.provenance import CountedBlocks
from eldr.engine.steps import blocks_in, is_pulled, scheduled


@dataclass(slots=True)
class _Prompt:
    tokens: int
    number: int  # ids may come again
    is_pulled: bool
    is_ordered: bool = False  # summed by the worker in a step, since it was computed last
    partial: bool = False  # some of its blocks were not computed here
    value: dict[str, Any] | None = None


class Prompts:
    """Follows prompts until their counts are handed out.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    hash_size : int
        Tokens from one of a request's block hashes to the next.
    count : callable
        Called with the result of every prompt that another engine pulls; the answer's record counts the others.
    """

    def __init__(self, config: Any, group: CacheGroup, hash_size: int, count: Callable[[str], None]) -> None:
        self._top_k = config.model_config.get_num_experts_per_tok()
        self._group = group
        self._count = count
        # positions that the scheduler may take for computed, though their drafts are rejected
        self._unsure = 2 * (1 + config.num_speculative_tokens)
        self._blocks = CountedBlocks(group.block_size, hash_size)
        self._numbers = itertools.count()
        self._prompts: dict[str, _Prompt] = {}
        self._handed_out: dict[int, _Prompt] = {}  # without counts until the next report

    def add(self, request: Any) -> None:
        """Follow a request; a prompt that is streamed in grows while it runs, and has no counts."""
        prompt = _Prompt(request.num_prompt_tokens, next(self._numbers), is_pulled(request))
        if request.resumable:
            prompt.is_ordered, prompt.value = True, unavailable("the prompt was streamed in")
            prompt.tokens = 0
        self._prompts[request.request_id] = prompt
        self._blocks.add(request.request_id, request.block_hashes)

    def order(self, output: Any, orders: Orders) -> None:
        """Add the prompts that are complete with this step."""
        steps, blocks_of = scheduled(output), blocks_in(output, self._group.index)
        # all of them first: a prompt may share a block that another request of the same step computes
        self._blocks.computed(steps, blocks_of)
        if drafts := output.scheduled_spec_decode_tokens:
            for request, computed, tokens in steps:
                if of_it := len(drafts.get(request, ())):
                    end = computed + tokens
                    orders.drafts += self._leave_out(request, end - of_it, end, blocks_of(request))
        for request, computed, tokens in steps:
            if (prompt := self._prompts.get(request)) is None or computed + tokens < prompt.tokens:
                continue
            if computed < prompt.tokens or not prompt.is_ordered:
                blocks = blocks_of(request)[: -(-prompt.tokens // self._group.block_size)]
                orders.finishing[request, prompt.number] = counted = self._blocks.counted(request, blocks)
                prompt.partial, prompt.is_ordered = len(counted) < len(blocks), True

    def _leave_out(self, request: str, first: int, end: int, blocks: list[int]) -> list[int]:
        """Return the slots of drafts right behind a prompt; others spoil their blocks, as it is not known where they are."""
        size = self._group.block_size
        prompt = self._prompts.get(request)
        if prompt is not None and prompt.tokens == first:
            self._blocks.spoil(blocks[-(-first // size) : -(-end // size)])  # a draft began them, uncounted
            return [blocks[at // size] * size + at % size for at in range(first, end)]
        self._blocks.spoil(blocks[max(0, first - self._unsure) // size : -(-end // size)])
        return []

    def take(self, key: tuple[str, int], counts: np.ndarray) -> None:
        """Take a prompt's counts from the worker's report; the first exact ones are kept.

        A preempted prompt is computed again with what was generated since, which its last block then counts too.
        """
        request, number = key
        prompt = self._handed_out.get(number) or self._prompts.get(request)
        if prompt is None or prompt.number != number:
            return  # aborted meanwhile, and perhaps another of the same id has come
        if prompt.value is None or not prompt.value.get("exact"):
            value = encoded(counts, self._top_k, prompt.tokens, complete=not prompt.partial)
            prompt.value = prompt.value or {}
            prompt.value.clear()  # an answer may have it already
            prompt.value.update(value)

    def end(self, request: Any) -> dict[str, Any] | None:
        """Return the prompt's part of the answer or the record; None if it was not completed.

        vLLM asks before it hands over the step's report, but sends the answer after that: the object is filled in
        between, by :meth:`take`.
        """
        name = request.request_id
        self._blocks.forget(name)
        prompt = self._prompts.pop(name, None) or _Prompt(0, next(self._numbers), is_pulled(request))
        # a server that sees a stop string in an unstreamed answer ends it so, too
        aborted = request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)
        if aborted and (prompt.is_pulled or prompt.value is None):
            return None
        if prompt.value is None:
            prompt.value = unavailable("no counts for this request")
            self._handed_out[prompt.number] = prompt
        else:
            self._count_result(prompt)
        return prompt.value

    def settle(self, stopped: str) -> None:
        """Take that the report is there which the answers waited for, and why nothing is counted any more."""
        for prompt in self._handed_out.values():
            if stopped and prompt.value is not None and "unavailable" in prompt.value:
                prompt.value["unavailable"] = stopped
            self._count_result(prompt)
        self._handed_out.clear()

    def _count_result(self, prompt: _Prompt) -> None:
        if prompt.is_pulled and prompt.value is not None:
            exact = prompt.value.get("exact")
            self._count("unavailable" if exact is None else "exact" if exact else "inexact")

    def reset(self) -> None:
        """Forget the counts of running requests, whose tokens are computed again, perhaps with other weights.

        A new number keeps those away that a step in flight brings.
        """
        for prompt in self._prompts.values():
            if prompt.tokens:
                prompt.value, prompt.number, prompt.is_ordered = None, next(self._numbers), False


def unavailable(reason: str) -> dict[str, Any]:
    """Return what stands in place of counts."""
    return {"v": 1, "unavailable": reason}

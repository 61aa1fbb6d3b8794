"""What is simulated of an engine: the model, its runner, and the transport beside our connector.

The experts of a token depend on all tokens before it, as in a model. So KV that was taken for another prompt's, a draft that was
rejected or a position counted twice shows in the counts, and what they must be follows from a request's tokens alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.v1.outputs import DraftTokenIds

from eldr.engine.steps import scheduled
from tests.engine.fakes import BLOCK, EXPERTS, LAYERS
from tests.vllm.engine_side.eldr_test_connector import Idle

VOCABULARY = 5
"""Few tokens, so that drafts and prefixes are often right by chance."""
STOP = 4
STORED = "stored"
"""Of a request's KV parameters: prompt tokens that the transport has, whether it brings them between steps."""


def digest(*value: object) -> int:
    """Return a number that looks like chance, and is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def next_token(tokens: Sequence[int]) -> int:
    """Return what the model says after some tokens."""
    return digest("next", *tokens) % VOCABULARY


def experts_of(tokens: Sequence[int]) -> list[list[int]]:
    """Return the two experts of the last of some tokens, in every layer."""
    pairs = []
    for layer in range(LAYERS):
        first, step = divmod(digest(layer, *tokens) % (EXPERTS * (EXPERTS - 1)), EXPERTS - 1)
        pairs.append([first, (first + 1 + step) % EXPERTS])
    return pairs


def counts_of(tokens: Sequence[int], first: int, end: int) -> np.ndarray:
    """Return what has to be counted of some positions."""
    counts = np.zeros((LAYERS, EXPERTS), int)
    for position in range(first, end):
        for layer, pair in enumerate(experts_of(tokens[: position + 1])):
            counts[layer, pair] += 1
    return counts


class Transport(Idle):
    """The connector beside ours: it pulls prompts on decode engines, and has parts of some stored on prefill engines."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pulling: dict[str, None] = {}  # in order: that of a set differs between processes
        self.blocks: list[int] = []  # loaded within the step that is scheduled now

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        stored, between = self._offer(request)
        more = max(0, stored - num_computed_tokens)
        return more, between and more > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        stored, between = self._offer(request)
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            request.kv_transfer_params["do_remote_prefill"] = False
        if num_external_tokens and between:
            self.pulling[request.request_id] = None
        elif num_external_tokens:
            end = -(-stored // BLOCK)
            self.blocks += blocks.get_block_ids()[0][end - -(-num_external_tokens // BLOCK) : end]

    def _offer(self, request: Any) -> tuple[int, bool]:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            return request.num_prompt_tokens, True
        return params.get(STORED, (0, False))


@dataclass
class Known:
    """What the model runner knows of a request. Where steps are scheduled ahead, the scheduler learns of it later."""

    tokens: list[int]
    computed: int
    drafts: list[int] = field(default_factory=list)


class Runner:
    """The model and its runner: they compute a step's positions, check drafts, sample, and draft for the next step."""

    def __init__(self, setting: Any, scheduler: Any, chance: random.Random) -> None:
        self._setting, self._scheduler, self._chance = setting, scheduler, chance
        self._known: dict[str, Known] = {}
        self.slots: list[int] = []
        self.experts: list[list[list[int]]] = []

    def run(self, output: Any) -> list[list[int]]:
        """Compute a step; return what it samples for each of its requests."""
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self._known.pop(name, None)
        self.slots, self.experts = [], []
        self._meet(output)
        return [self._feed(output, name, tokens) for name, _, tokens in scheduled(output)]

    def _meet(self, output: Any) -> None:
        anew = {
            new.req_id for new in output.scheduled_new_reqs
        } | output.scheduled_cached_reqs.resumed_req_ids
        for name, computed, _ in scheduled(output):
            tokens = list(self._scheduler.requests[name].all_token_ids)
            if name in anew:
                self._known[name] = Known(tokens, computed)
            elif not self._setting.asynchronous:
                # after a failed load vLLM drops what was sampled, and has positions computed again
                self._known[name].tokens, self._known[name].computed = tokens, computed

    def _feed(self, output: Any, name: str, n_tokens: int) -> list[int]:
        known, n_drafts = self._known[name], len(output.scheduled_spec_decode_tokens.get(name, ()))
        end = known.computed + n_tokens - n_drafts
        assert end <= len(known.tokens), f"{name} is to compute tokens that nobody knows"
        assert end == len(known.tokens) or not n_drafts, f"{name} has drafts before its last token"
        # who has just come back is scheduled with drafts that were never made: vLLM feeds whatever lies there
        drafts = (known.drafts + [0] * n_drafts)[:n_drafts]
        self._capture(name, known.tokens[:end] + drafts, known.computed)
        if end < len(known.tokens):
            known.computed, known.drafts = end, []
            return []
        sampled = _sample(known.tokens, drafts)
        known.tokens += sampled
        known.computed = len(known.tokens) - 1
        known.drafts = self._draft(known.tokens)
        return sampled

    def _capture(self, name: str, tokens: list[int], first: int) -> None:
        blocks = self._scheduler.kv_cache_manager.get_block_ids(name)[0]
        for position in range(first, len(tokens)):
            self.slots.append(blocks[position // BLOCK] * BLOCK + position % BLOCK)
            self.experts.append(experts_of(tokens[: position + 1]))

    def _draft(self, tokens: list[int]) -> list[int]:
        drafts: list[int] = []
        for _ in range(self._setting.drafts):
            right = next_token(tokens + drafts)
            drafts.append(right if self._chance.random() < 0.6 else self._chance.randrange(VOCABULARY))
        # a scheduler that runs ahead counts on all of them
        return drafts if self._setting.asynchronous else drafts[: self._chance.randint(0, len(drafts))]

    def drafts(self, output: Any) -> DraftTokenIds:
        """Return the drafts for the requests of a step."""
        names = [name for name in output.num_scheduled_tokens if name in self._known]
        return DraftTokenIds(names, [self._known[name].drafts for name in names])


def _sample(tokens: list[int], drafts: list[int]) -> list[int]:
    """Return the drafts that the model agrees with, and a token of its own."""
    sampled: list[int] = []
    for draft in (*drafts, None):
        sampled.append(next_token(tokens + sampled))
        if sampled[-1] != draft:
            break
    return sampled

"""An engine that prefills and decodes, with our connector and no transport: the counts of prompts and answers equal transformers.

The cache holds about one long request, so that blocks are evicted and requests preempted all the time.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import httpx
import numpy as np
import pytest

from eldr.contract import (
    HEADER_LOAD,
    METRIC_BATCH_SIZE,
    METRIC_COUNTING,
    METRIC_FED_TOKENS,
    METRIC_RECORDS,
    PATH_LOAD,
)
from eldr.wire import ExpertCounts, decode_counts
from eldr_tiny_moe.client import MODEL, ReferenceClient
from tests.support.processes import wait_for
from tests.vllm.comparison import Seen, check, resolve
from tests.vllm.engines import BLOCK, NAME, Engine, Mode, Setup, asked_mode
from tests.vllm.fleet import serving
from tests.vllm.models import written
from tests.vllm.pair import Exchange, Pair
from tests.vllm.prompts import tokens

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
MTP = {"method": "mtp", "num_speculative_tokens": 3}
HITS, PREEMPTIONS = "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"
KINDS = {
    "synchronous": (Mode("V1", "synchronous"), None),
    "asynchronous": (Mode("V1", "asynchronous"), None),
    "ngram": (Mode("V1", "synchronous"), NGRAM),
    "v2-asynchronous": (Mode("V2", "asynchronous"), None),
    "mtp": (asked_mode(), MTP),
}
MORE = {"synchronous", "v2-asynchronous", "mtp"}
"""Of ``make e2e-vllm-all``."""


@dataclass
class Served:
    """An engine that does both, and the reference of the same model."""

    engine: Engine
    pair: Pair
    reference: ReferenceClient
    near_ties: list[str]
    drafts: str

    def signed(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Return requests of one sequence with what their records say of their prompts.

        Behind an answer that was drafted, a prompt may not be exact, and says so.
        """
        wanted = {one.base for one in exchanges}
        wait_for(lambda: wanted <= self.pair.activations().keys(), "a record of every request", 60)
        prompts = {one["request_id"]: decode_counts(one["prompt"]) for one in self.pair.raw_records()}
        inexact = [one.base for one in exchanges if not prompts[one.base].exact]
        assert len(inexact) < (len(exchanges) if self.drafts else 1), inexact
        return [
            replace(one, signature=prompts[one.base] if one.base not in inexact else None)
            for one in exchanges
        ]

    def check(self, exchanges: Sequence[Exchange]) -> None:
        """Compare with the reference: the tokens, and the counts of prompts and answers."""
        check(self, self.signed(exchanges))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.long if name in MORE else ()) for name in KINDS],
)
def served(request, environment, plugin, tmp_path_factory, near_ties):
    mode, drafts = KINDS[request.param]
    folder, model, cache = tmp_path_factory.mktemp("both"), MODEL, "4M"
    if drafts == MTP:
        model, cache = written(environment, "glm4moe", folder / "model", "--heads", "1"), "5M"
    arguments = ("--max-num-batched-tokens", "64", "--kv-cache-memory-bytes", cache)
    arguments += ("--speculative-config", json.dumps(drafts)) if drafts else ()
    setup = Setup(
        role="both", plugin=plugin, model=model, max_len=1024, mode=mode, arguments=arguments,
        env={"VLLM_SERVER_DEV_MODE": "1"},
    )  # fmt: skip
    engine = Engine("both", setup, environment, folder)
    with serving(engine), ReferenceClient(environment, model) as reference:
        yield Served(
            engine,
            Pair(engine.url, engine.url, NAME),
            reference,
            near_ties,
            drafts["method"] if drafts else "",
        )


def test_it_starts_without_an_error_and_has_a_limit(served):
    assert "ERROR" not in served.engine.log.read_text()
    assert httpx.get(served.engine.url + PATH_LOAD).json() == {"v": 1, "in_flight": 0, "limit": 16}
    asked = {"model": NAME, "prompt": tokens(3, 20), "max_tokens": 3}
    answer = httpx.post(served.engine.url + "/v1/completions", json=asked, timeout=60)
    assert not (answer.json().get("kv_transfer_params") or {}).get("eldr"), "clients get no counts"
    assert answer.headers[HEADER_LOAD] == "1/16"


def test_cold_then_from_the_prefix_cache(served):
    prompt, hits = tokens(1, 150), served.engine.metric(HITS)
    served.check([served.pair.ask_decode_only(p, 12) for p in (prompt, prompt, prompt[:96] + tokens(2, 40))])
    # vLLM computes the last cached block again for a head that drafts, whose input it holds
    assert served.engine.metric(HITS) - hits >= 128 + 96 - (2 * BLOCK if served.drafts == "mtp" else 0)


def test_lengths_around_blocks_and_chunks(served):
    lengths = ((1, 3), (32, 1), (32, 2), (96, 40), (33, 5), (700, 6))
    served.check([served.pair.ask_decode_only(tokens(n, n), g) for n, g in lengths])


def test_a_conversation_goes_on_over_blocks_that_were_generated(served):
    prompt, turns = tokens(5, 70), []
    for turn in range(5):
        turns.append(served.pair.ask_decode_only(prompt, 25))
        prompt = [*prompt, *turns[-1].generated, *tokens(50 + turn, 7)]
    served.check(turns)


def test_many_at_once_of_which_some_are_preempted(served):
    rng, preempted = np.random.default_rng(7), served.engine.metric(PREEMPTIONS)
    heads = [tokens(100 + i, 96) for i in range(3)]
    prompts = [
        heads[i % 3][: int(rng.integers(0, 97))] + tokens(200 + i, int(rng.integers(20, 100)))
        for i in range(16)
    ]
    with ThreadPoolExecutor(len(prompts)) as pool:
        served.check(list(pool.map(lambda prompt: served.pair.ask_decode_only(prompt, 120), prompts)))
    assert served.engine.metric(PREEMPTIONS) > preempted


def test_several_answers_of_a_prompt_and_several_prompts(served):
    """Whichever record is whose: the answers of a request have the same id."""
    for prompt, n in ((tokens(9, 130), 4), ([tokens(9, 130), tokens(10, 40)], 2)):
        found = served.pair.ask_several(prompt, 8, n=n if n > 2 else 1, temperature=1.0)
        records = partial(of, served, found[0].base)
        wait_for(lambda n=n, records=records: len(records()) == n, "a record of each answer", 60)
        left = records()
        assert all(answer.exact and (prompt_of_it.exact or served.drafts) for answer, prompt_of_it in left)
        for exchange in found:
            left.remove(next(one for one in left if is_of(served, exchange, *one)))


def of(served: Served, base: str) -> list[tuple[ExpertCounts, ExpertCounts]]:
    """Return answer and prompt of a request's records."""
    records = [one for one in served.pair.raw_records() if one["request_id"] == base]
    return [(decode_counts(one), decode_counts(one["prompt"])) for one in records]


def is_of(served: Served, exchange: Exchange, answer: ExpertCounts, prompt: ExpertCounts) -> bool:
    """Tell whether a record can be that of an answer."""
    signature = prompt.counts.astype(int) if prompt.exact else None
    seen = Seen(len(exchange.prompt), [], signature, answer.counts.astype(int))
    with contextlib.suppress(AssertionError):
        resolve(seen, lambda swaps: served.reference.ask(exchange.prompt, exchange.generated, (), swaps))
        return True
    return False


def test_what_clients_left_behind_is_counted_right(served):
    chance, base = random.Random(1), tokens(77, 700)

    def leave(length: int, after: float) -> None:
        asked = {"model": NAME, "prompt": base[:length], "max_tokens": 200, "ignore_eos": True}
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(served.engine.url + "/v1/completions", json=asked, timeout=after)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda _: leave(chance.randrange(300, 700), chance.uniform(0.02, 0.3)), range(20)))
    wait_for(lambda: not served.engine.requests(), "the engine to be idle", 60)
    served.check(
        [served.pair.ask_decode_only(base[:n] + tokens(600 + n, 9), 6) for n in (250, 320, 450, 690)]
    )


def test_what_is_exact_after_a_reset_is_right(served):
    prompt = tokens(44, 200)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(served.pair.ask_decode_only, prompt[: 150 + i], 200) for i in range(4)]
        wait_for(lambda: served.engine.requests() or all(one.done() for one in asked), "one to run", 60)
        query = {"reset_running_requests": "true", "reset_external": "true"}
        done = httpx.post(served.engine.url + "/reset_prefix_cache", params=query, timeout=60)
        # beside another connector it cannot while a step is scheduled ahead; all requests are computed again nevertheless
        assert done.is_success or served.engine.setup.is_witnessed
        exchanges = [one.result() for one in asked]
    served.check([served.pair.ask_decode_only(prompt, 5)])
    for exchange in exchanges:
        ((answer, prompt_of_it),) = of(served, exchange.base)
        assert not answer.exact or is_of(served, exchange, answer, prompt_of_it)


def test_what_is_asked_after_a_sleep_is_counted_right(served):
    prompt = tokens(45, 200)
    exchanges = [served.pair.ask_decode_only(prompt, 5)]
    for level in (1, 2):
        for call in (f"/sleep?level={level}", "/wake_up"):
            httpx.post(served.engine.url + call, timeout=60).raise_for_status()
        exchanges.append(served.pair.ask_decode_only(prompt, 5))
    served.check(exchanges)


def test_steps_that_compute_prompts_are_not_measured(served):
    """A chunk of a prompt makes a step long, whatever experts its answers use."""
    metric = served.engine.metric
    before = {name: metric(name) for name in (f"{METRIC_BATCH_SIZE}_count", f"{METRIC_FED_TOKENS}_total")}
    served.pair.ask_decode_only(tokens(800, 400), 1)
    exact = metric(f"{METRIC_RECORDS}_total", result="exact")
    served.pair.ask_decode_only(tokens(801, 64), 9)
    wait_for(lambda: metric(f"{METRIC_RECORDS}_total", result="exact") > exact, "statistics", 60)
    told = {name: metric(name) - value for name, value in before.items()}
    steps, fed = told.values()
    assert (1 if served.drafts else 8) <= steps <= 8
    assert steps <= fed <= (4 if served.drafts else 1) * steps
    assert metric(METRIC_COUNTING) == 1

"""Prompt signatures and decode activations of real engines equal an independent transformers reference, L1 = 0.

The engines are made uncomfortable on purpose: a chunk is 64 tokens, and the KV cache so small that blocks are evicted and
reused all the time.
"""

import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from eldr.contract import METRIC_CUT_PROMPTS, METRIC_DRAFT_EXPERTS
from eldr_tiny_moe.client import MODEL
from tests.support.processes import wait_for
from tests.vllm.comparison import check
from tests.vllm.engines import CPU_MODE, GPU_MODE, Mode, Setup
from tests.vllm.models import written
from tests.vllm.pools import serving
from tests.vllm.prompts import tokens

# KV cache of each model's prefill and decode engine: hardly more than one long request, or all prompts of the last test
CACHES = {
    "qwen3moe-trained": ("4M", "4M"),
    "gptoss": ("8M", "8M"),
    "gemma4": ("8M", "6M"),
    "gemma4-split": ("8M", "8M"),
    "qwen3moe": ("8M", "8M"),
    "glm4moe": ("8M", "8M"),
}
LEASE = 300  # whoever waits longer at a full engine pulls what others have overwritten, and nothing tells
BLOCK = 32
WINDOW = 64
"""Tokens that sliding layers of these models see."""
CUT = f"{METRIC_CUT_PROMPTS}_total"
PREEMPTIONS = "vllm:num_preemptions_total"
HITS = "vllm:prefix_cache_hits_total"
FINISHED = "vllm:request_success_total"
DRAFT_EXPERTS = f"{METRIC_DRAFT_EXPERTS}_total"
MOST_LAYERS = 8


class Kind(NamedTuple):
    """What engines serve, in which mode, and with which ``--speculative-config``."""

    family: str
    mode: Mode | None = None
    drafts: dict[str, Any] | None = None


TRAINED = "qwen3moe-trained"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
DRAFT_MODEL = {"method": "draft_model", "num_speculative_tokens": 3}
EAGLE = {"method": "eagle3", "num_speculative_tokens": 2}
MTP = {"method": "mtp", "num_speculative_tokens": 2}
NOISE = "0.03"
"""Some of such a model's drafts are accepted, others are not."""
SAID = (1000, 2000)
"""The only tokens that a head drafts. Its weights are random: of a request that may have all tokens, none would be accepted.
Where they are the only ones, and a penalty makes them take turns, some are.
"""
KINDS = {
    TRAINED: Kind(TRAINED),
    "v2-asynchronous": Kind(TRAINED, GPU_MODE),
    "ngram": Kind(TRAINED, CPU_MODE, NGRAM),
    "mtp": Kind("glm4moe", None, MTP),
}
MORE_KINDS = {
    **{family: Kind(family) for family in ("gptoss", "gemma4", "gemma4-split")},
    "draft-model-asynchronous": Kind("qwen3moe", Mode("V1", "asynchronous"), DRAFT_MODEL),
    "eagle3-asynchronous": Kind("qwen3moe", Mode("V1", "asynchronous"), EAGLE),
    "v2-ngram": Kind(TRAINED, Mode("V2", "synchronous"), NGRAM),
    "v2-draft-model": Kind("qwen3moe", GPU_MODE, DRAFT_MODEL),
    "v2-eagle3": Kind("qwen3moe", GPU_MODE, EAGLE),
}
"""In ``make e2e-vllm-all`` only."""


def kinds(long: Collection[str]) -> list[Any]:
    return [
        pytest.param(kind, id=name, marks=pytest.mark.long if name in long else ())
        for name, kind in {**KINDS, **MORE_KINDS}.items()
    ]


many_steps = pytest.mark.parametrize(
    "pools", kinds({"v2-asynchronous", *MORE_KINDS}), indirect=True, scope="module"
)
"""Of tests that take minutes where V2's kernels are interpreted."""


@pytest.fixture(scope="module", params=kinds(MORE_KINDS))
def pools(request, environment, plugin, tmp_path_factory, near_ties):
    family, mode, drafts = request.param
    folder = tmp_path_factory.mktemp(family)
    heads = ("--heads", "1") if drafts == MTP else ()
    model = MODEL if family == TRAINED else written(environment, family, folder / "model", *heads)
    if drafts == EAGLE:
        drafts = drafts | {
            "model": str(written(environment, "eagle3", folder / "head", "--drafts", *map(str, SAID)))
        }
    if drafts == DRAFT_MODEL:
        drafts = drafts | {"model": str(written(environment, family, folder / "draft", "--noise", NOISE))}
    crowded = ("--max-num-batched-tokens", "64")
    crowded += ("--speculative-config", json.dumps(drafts)) if drafts else ()
    setup = Setup(role="plain", lease=LEASE, plugin=plugin, model=model, max_len=1024, arguments=crowded)
    setup = replace(setup, mode=mode or setup.mode)
    with serving(family, setup, CACHES[family], environment, folder, near_ties) as pools:
        pools.drafts = drafts and drafts["method"]
        yield pools


DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"


def test_cold_then_from_the_prefix_cache(pools):
    prompt = tokens(1, 150)
    other_tail = prompt[:96] + tokens(2, 40)
    hits = pools.prefill.metric(HITS)
    exchanges = [pools.pair.ask(p, 12) for p in (prompt, prompt, other_tail)]
    check(pools, exchanges)
    assert np.array_equal(exchanges[0].signature.counts, exchanges[1].signature.counts)
    # sliding windows of the hybrid models forget the beginning, so that only the whole prompt is found again there
    expected = 128 + (0 if pools.hybrid else 96)
    # vLLM computes the last cached block again for a head that drafts, whose input it holds
    assert pools.prefill.metric(HITS) - hits >= expected - (
        2 * BLOCK if pools.drafts in {"eagle3", "mtp"} else 0
    )


@pytest.mark.parametrize(("n", "g"), [(1, 3), (BLOCK, 1), (BLOCK, 2), (3 * BLOCK, 40), (33, 5), (700, 6)])
def test_lengths_around_blocks_and_chunks(pools, n, g):
    check(pools, [pools.pair.ask(tokens(n, n), g)])


def test_a_prompt_that_a_window_would_cut_is_prefilled_by_the_decode_engine(pools):
    """Stock vLLM answers some of these wrongly: docs/upstream/sliding-windows.md."""
    cut = range(WINDOW + BLOCK - 1, 300, BLOCK)
    for lengths, expected in ((cut, len(cut)), ([n + 1 for n in cut], 0)):
        before = pools.decode.metric(CUT)
        check(pools, [pools.pair.ask(tokens(n, n), 8) for n in lengths])
        assert pools.decode.metric(CUT) - before == (expected if pools.hybrid else 0)


def test_chat(pools):
    check(pools, [pools.pair.ask("Write a long story about a river and its two banks.", 20, chat=True)])


def test_prompts_that_the_decode_engine_prefills_itself(pools):
    shared = tokens(5, 70)
    exchanges = [pools.pair.ask(shared, 8), pools.pair.ask_decode_only(shared + tokens(6, 30), 8)]
    exchanges.append(pools.pair.ask_decode_only(shared + exchanges[0].generated, 8))
    check(pools, exchanges)


@many_steps
def test_many_at_once_while_blocks_are_evicted_and_reused(pools):
    rng = np.random.default_rng(7)
    heads = [tokens(100 + i, 96) for i in range(3)]
    prompts = [
        heads[i % 3][: int(rng.integers(0, 97))] + tokens(200 + i, int(rng.integers(20, 200)))
        for i in range(48)  # of so many, the caches hold about half
    ]
    with ThreadPoolExecutor(6) as pool:
        exchanges = list(
            pool.map(
                lambda i: (pools.pair.ask_decode_only if i % 5 == 4 else pools.pair.ask)(prompts[i], 10),
                range(len(prompts)),
            )
        )
    check(pools, exchanges)
    hits = pools.prefill.metric(HITS)
    check(pools, [pools.pair.ask(prompts[0], 2)])
    assert pools.prefill.metric(HITS) - hits < (len(prompts[0]) - 1) // BLOCK * BLOCK, "nothing was evicted"


@many_steps
def test_preempted_requests_count_every_token_once(pools):
    """More tokens than the decode engine's cache holds: some requests lose their blocks and are computed again."""
    if pools.family == "gptoss" and pools.decode.mode().runner == "V2":
        pytest.skip("a step of these 16 requests takes ten seconds while V2's kernels are interpreted")
    preempted, prefilled = pools.decode.metric(PREEMPTIONS), pools.prefill.metric(FINISHED)
    # V2's kernels are slow here, so no more steps than it takes to fill the trained model's cache of 2048 tokens
    requests, length = (
        (10, 170) if pools.decode.mode().runner == "V2" and pools.family == TRAINED else (16, 240)
    )
    prompts = [tokens(300 + i, 60) for i in range(requests)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        pools.decode.pause()  # they begin together, so that they also grow together
        try:
            asked = [pool.submit(pools.pair.ask, prompt, length) for prompt in prompts]
            handed_over = prefilled + len(prompts)
            wait_for(lambda: pools.prefill.metric(FINISHED) == handed_over, "all to be prefilled", 60)
        finally:
            pools.decode.resume()
        exchanges = [one.result() for one in asked]
    check(pools, exchanges)
    assert pools.decode.metric(PREEMPTIONS) > preempted


def test_of_drafts_those_that_are_accepted_count(pools):
    if not pools.drafts:
        pytest.skip("an engine without speculative decoding makes none")
    drafted, accepted, experts = (pools.decode.metric(name) for name in (DRAFTED, ACCEPTED, DRAFT_EXPERTS))
    only = {"allowed_token_ids": SAID, "frequency_penalty": 2.0} if pools.drafts == "eagle3" else {}
    exchanges = [pools.pair.ask(3 * tokens(400 + i, 20), 100, **only) for i in range(4)]
    check(pools, exchanges, greedy=not only)
    drafted, accepted = pools.decode.metric(DRAFTED) - drafted, pools.decode.metric(ACCEPTED) - accepted
    assert 10 < accepted < drafted - 10
    if (
        pools.drafts == "mtp"
    ):  # each pass of the head loads some experts, over the number of the model's layers
        assert pools.decode.metric(DRAFT_EXPERTS) - experts > drafted / MOST_LAYERS

"""Requests that routers do not split, but send whole to a decode engine: it serves them, and what it counts equals transformers.

``make e2e-vllm-all ONLY=test_whole_requests`` runs them.
"""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from eldr_tiny_moe.client import MODEL
from tests.support.processes import wait_for
from tests.vllm.comparison import check
from tests.vllm.engines import CPU_MODE, GPU_MODE
from tests.vllm.pools import chunked, serving
from tests.vllm.prompts import tokens

pytestmark = pytest.mark.long
TOKENS = 8
EMBED = Path(__file__).parent / "engine_side" / "eldr_test_embed.py"


@pytest.fixture(scope="module", params=[CPU_MODE, GPU_MODE], ids=lambda mode: mode.runner)
def pools(request, environment, plugin, tmp_path_factory, near_ties):
    setup = chunked(request.param, plugin, "--enable-prompt-embeds")
    folder = tmp_path_factory.mktemp("whole")
    with serving("qwen3moe-trained", setup, ("4M", "4M"), environment, folder, near_ties) as pools:
        yield pools


@pytest.mark.parametrize(
    "fields",
    [{"echo": True}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 2}],
    ids=["echo", "echo-logprobs", "prompt_logprobs"],
)
def test_what_is_said_of_the_prompt(pools, fields):
    prompt = tokens(1, 150)
    for asked in (prompt, prompt[:96] + tokens(2, 40)):  # the second finds blocks of the first
        (exchange,) = pools.pair.ask_several(asked, TOKENS, **fields)
        assert len(exchange.generated) == TOKENS
        check(pools, [exchange])


def test_a_prompt_of_embeddings(pools, environment):
    """Those of tokens, so that the answer is that of these tokens."""
    prompt = tokens(3, 70)
    command = [environment / "bin" / "python", EMBED, MODEL, *map(str, prompt)]
    carried = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout.strip()
    for _ in range(2):
        exchanges = pools.pair.ask_several([], TOKENS, prompt_embeds=carried)
        assert [len(one.generated) for one in exchanges] == [TOKENS]
        check(pools, [replace(one, prompt=prompt) for one in exchanges])


def test_beams(pools):
    """Each step of each beam is a request of one token, which has nothing to count."""
    prompt = tokens(4, 40)
    found = pools.pair.ask_several(prompt, TOKENS, use_beam_search=True, n=2)
    assert len(found) == 2
    wait_for(lambda: not pools.decode.requests(), "all beams to end", 60)
    records = [counts for base, counts in pools.pair.records() if base == found[0].base]
    assert all(one.exact and not one.tokens and not one.counts.any() for one in records)
    check(pools, [pools.pair.ask(prompt, TOKENS)])

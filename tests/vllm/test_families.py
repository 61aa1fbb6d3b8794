"""More families of models: signatures and activations of real engines equal transformers, in a few requests for each.

``make e2e-vllm`` runs the first one; ``make e2e-vllm-all ONLY=FAMILY`` any of them.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import pytest

from eldr_tiny_moe.client import MODEL
from tests.vllm.comparison import check
from tests.vllm.engines import CPU_MODE, GPU_MODE, Mode, Setup
from tests.vllm.models import written
from tests.vllm.pools import serving
from tests.vllm.prompts import tokens

LEASE = 300
HITS = "vllm:prefix_cache_hits_total"

pytestmark = pytest.mark.long


class Family(NamedTuple):
    """How engines of a family are started, and what they do of their own.

    Attributes
    ----------
    cache : str
        KV cache of each engine.
    arguments, env : what a family needs besides
    chunk : str
        Into how many tokens prompts are cut; empty where they cannot be.
    caches_prefixes : bool
    greedy : bool
        Whether tokens are compared, too; in bfloat16 rounding chooses some.
    left : int
        How many tokens of a prompt the decode engine computes: one where layers have a state.
    heads, drafts : int
        Layers that predict further tokens (MTP), and tokens that they draft in a step.
    mode : Mode, optional
        In which they run; None: as asked for.
    """

    cache: str = "8M"
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = MappingProxyType({})
    chunk: str = "64"
    caches_prefixes: bool = True
    greedy: bool = True
    left: int = 0
    heads: int = 0
    drafts: int = 0
    mode: Mode | None = None


BFLOAT16 = ("--dtype", "bfloat16")
"""The only type in which vLLM's kernel for CPUs computes Gated DeltaNet."""
OWN_POSITIONS = ("--compilation-config", '{"custom_ops": ["-rotary_embedding"]}')
"""PyTorch's operations instead of vLLM's kernel for CPUs."""
DS = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
"""NIXL asks for it where layers have a state."""
DEEPSEEK = Family("32M", OWN_POSITIONS, chunk="", caches_prefixes=False)
QWEN3NEXT = Family("32M", BFLOAT16, DS, chunk="128", greedy=False, left=1)
FAMILIES = {
    "glm4moe": Family(),
    "olmoe": Family(),
    # vLLM's attention for CPUs without AMX does neither; its kernel for positions turns one head of several
    "deepseekv3": DEEPSEEK,
    # with drafts and asynchronous scheduling stock vLLM's MLA for CPUs computes other tokens
    "deepseekv3-mtp": DEEPSEEK._replace(heads=1, drafts=1, mode=CPU_MODE),
    "deepseekv3-mtp-heads": DEEPSEEK._replace(heads=2, drafts=2, mode=CPU_MODE),
    "qwen3next": QWEN3NEXT,
    # what moves a state when drafts are rejected is a Triton kernel, which runs on a CPU with model runner V2 only
    "qwen3next-mtp": QWEN3NEXT._replace(heads=1, drafts=2, mode=GPU_MODE),
    # without prefix caching the state has one block for a whole request, attention many
    "qwen3next-uncached": Family(
        "32M", (*BFLOAT16, "--no-enable-prefix-caching"), DS, caches_prefixes=False, greedy=False, left=1
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pools(request, environment, plugin, tmp_path_factory, near_ties):
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    asked = FAMILIES[family]
    heads = ("--heads", str(asked.heads)) if asked.heads else ()
    model = written(environment, family.partition("-")[0], folder / "model", *heads)
    arguments = asked.arguments + (("--max-num-batched-tokens", asked.chunk) if asked.chunk else ())
    if asked.drafts:
        drafts = {"method": "mtp", "num_speculative_tokens": asked.drafts}
        arguments += ("--speculative-config", json.dumps(drafts))
    setup = Setup(
        role="plain",
        lease=LEASE,
        plugin=plugin,
        model=model,
        max_len=1024,
        arguments=arguments,
        env=dict(asked.env),
    )
    setup = replace(setup, mode=asked.mode or setup.mode)
    with serving(family, setup, (asked.cache, asked.cache), environment, folder, near_ties) as pools:
        yield pools


def test_prompts_of_many_lengths_alone_and_together(pools):
    shared = tokens(1, 300)
    exchanges = [pools.pair.ask(shared, 12)]
    hits = pools.prefill.metric(HITS)
    exchanges.append(pools.pair.ask(shared, 4))
    family = FAMILIES[pools.family]
    assert (pools.prefill.metric(HITS) > hits) == family.caches_prefixes
    prompts = [tokens(n, n) for n in (1, 31, 32, 33, 97, 300)] + [shared[:128] + tokens(2, 40)]
    with ThreadPoolExecutor(4) as pool:
        exchanges += pool.map(lambda prompt: pools.pair.ask(prompt, 10), prompts)
    exchanges.append(pools.pair.ask_decode_only(shared + tokens(3, 30), 8))
    check(pools, exchanges, greedy=family.greedy, left=family.left)
    if family.drafts:
        made, right = (
            pools.decode.metric(f"vllm:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted")
        )
        assert 0 < right < made


def test_tokens_that_a_grammar_chose(pools):
    exchange = pools.pair.ask(tokens(4, 50), 12, structured_outputs={"regex": "[0-9]{60}"})
    check(pools, [exchange], greedy=False, left=FAMILIES[pools.family].left)
    texts = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    assert {*exchange.generated} <= {number for text, number in texts.items() if text.isdigit()}

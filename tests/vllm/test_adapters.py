"""Adapters (LoRA) of attention on real engines: each request's counts are those of the model with its adapter, as transformers computes it.

Adapters of experts need ``moe_align_block_size``, which vLLM's build for CPUs lacks. ``make e2e-vllm-all ONLY=test_adapters`` runs them.
"""

import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from eldr_tiny_moe.client import MODEL, ReferenceClient
from tests.support.router import router
from tests.vllm.comparison import check
from tests.vllm.engines import CPU_MODE, GPU_MODE, NAME
from tests.vllm.pools import chunked, serving
from tests.vllm.prompts import tokens

pytestmark = pytest.mark.long
TOKENS = 8
WRITE = Path(__file__).parent / "engine_side" / "eldr_test_lora.py"
ADAPTERS = ("alice", "bob")


@pytest.fixture(scope="module")
def written(environment, tmp_path_factory):
    """Folders of each adapter, and of the model with its weights."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(ADAPTERS):
        python, merged = environment / "bin" / "python", folder / f"{name}-merged"
        command = [python, WRITE, MODEL, folder / name, merged, str(seed)]
        subprocess.run(command, check=True, timeout=240)
    return folder


@pytest.fixture(scope="module", params=[CPU_MODE, GPU_MODE], ids=lambda mode: mode.runner)
def served(request, environment, plugin, written, tmp_path_factory, near_ties):
    """By the name that a request gives as its model: both engines, and the reference of what it means."""
    loras = (f"{name}={written / name}" for name in ADAPTERS)
    # one slot more than adapters: on CPUs requests without an adapter compute with the last slot's, beside others that have one
    slots = ("--enable-lora", "--max-loras", str(len(ADAPTERS) + 1), "--max-lora-rank", "8")
    targets = ("--lora-target-modules", "q_proj", "v_proj")
    setup = chunked(request.param, plugin, *slots, *targets, "--lora-modules", *loras, ELDR_CPU_LORA="1")
    folder = tmp_path_factory.mktemp("lora")
    with (
        serving("qwen3moe-trained", setup, ("4M", "4M"), environment, folder, near_ties) as pools,
        ExitStack() as opened,
    ):
        found = {NAME: pools}
        for name in ADAPTERS:
            reference = opened.enter_context(ReferenceClient(environment, written / f"{name}-merged"))
            found[name] = replace(pools, pair=replace(pools.pair, model=name), reference=reference)
        yield found


def test_each_request_has_the_experts_of_its_adapter(served):
    prompt, signatures, answers = tokens(1, 150), [], []
    for asked in (prompt, prompt[:96] + tokens(2, 40)):  # the second finds blocks of its own adapter's first
        for pools in served.values():
            exchange = pools.pair.ask(asked, TOKENS)
            check(pools, [exchange])
            signatures.append(exchange.signature.counts.tobytes())
            answers.append(tuple(exchange.generated))
    assert len(set(signatures)) == len(signatures), "each adapter has experts of its own for one prompt"
    assert len(set(answers)) > 2


def test_adapters_in_one_batch(served, background):
    asked = [(name, tokens(10 + number, 40 + 9 * number)) for number in range(3) for name in served]
    waiting = [(name, background.submit(served[name].pair.ask, prompt, TOKENS)) for name, prompt in asked]
    for name, exchange in waiting:
        check(served[name], [exchange.result()])


def test_a_router_keeps_adapters_apart(served, tmp_path):
    pools, prompt = served[NAME], tokens(30, 100)
    engines = {"p": pools.prefill.url, "d": pools.decode.url}
    with router(tmp_path, engines, model=NAME) as started:
        for name in (*served, *served):
            fields = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            body = {"model": name, "prompt": prompt, **fields}
            answer = httpx.post(f"{started.url}/v1/completions", json=body, timeout=240)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            assert choice["token_ids"] == served[name].pair.ask(prompt, TOKENS).generated, name
        assert (started.counter("requests", outcome="ok"), started.counter("whole")) == (6, 0)
        unknown = httpx.post(f"{started.url}/v1/completions", json=body | {"model": "carol"}, timeout=240)
        assert unknown.status_code == 404

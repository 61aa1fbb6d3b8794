"""Tensor and expert parallelism: two ranks compute a prompt, one of them counts logical experts, wherever EPLB has put them."""

import json

import numpy as np
import pytest

from eldr_tiny_moe.client import MODEL, ReferenceClient
from tests.vllm.comparison import Seen, resolve
from tests.vllm.engines import NAME, Engine, Setup
from tests.vllm.fleet import serving
from tests.vllm.pair import Pair
from tests.vllm.prompts import tokens

LEASE = 5
EPLB = {
    "num_redundant_experts": 32,
    "use_async": False,
    "communicator": "torch_nccl",
    "window_size": 4,
    "step_interval": 4,
}


@pytest.fixture(scope="module")
def engine(environment, plugin, tmp_path_factory):
    setup = Setup(
        role="prefill",
        lease=LEASE,
        plugin=plugin,
        arguments=(
            *("--tensor-parallel-size", "2", "--max-num-batched-tokens", "64"),
            *("--enable-expert-parallel", "--enable-eplb", "--eplb-config", json.dumps(EPLB)),
        ),
        env={"ELDR_CPU_EXPERT_PARALLEL": "1"},
    )
    found = Engine("prefill", setup, environment, tmp_path_factory.mktemp("ranks"))
    with serving(found):
        yield found


def test_signatures_of_two_ranks_cold_and_after_a_hit(engine, environment, near_ties):
    prompt = tokens(3, 300)
    pair = Pair(engine.url, engine.url, NAME)
    with ReferenceClient(environment, MODEL) as reference:
        for hits in (0, 288):
            before = engine.metric("vllm:prefix_cache_hits_total")
            found = pair.sign(prompt)
            assert engine.metric("vllm:prefix_cache_hits_total") - before == hits
            assert (found.exact, found.tokens) == (True, len(prompt))
            counts = found.counts.astype(int)
            seen = Seen(len(prompt), [], counts, np.zeros_like(counts))
            near_ties += resolve(seen, lambda swaps: reference.ask(prompt, swaps=swaps), f"{hits} hits")
    assert "Rearranged experts" in engine.log.read_text()

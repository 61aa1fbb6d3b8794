"""Tensor parallelism: two ranks compute a prompt, one of them counts."""

import httpx
import numpy as np
import pytest

from eldr import contract
from eldr.wire import decode_counts
from eldr_tiny_moe.client import MODEL, ReferenceClient
from tests.vllm.engines import NAME, Engine, Setup, wait_for

LEASE = 5


@pytest.fixture(scope="module")
def engine(environment, plugin, tmp_path_factory):
    setup = Setup(
        role="prefill",
        lease=LEASE,
        plugin=plugin,
        arguments=("--tensor-parallel-size", "2", "--max-num-batched-tokens", "64"),
    )
    found = Engine("prefill", setup, environment, tmp_path_factory.mktemp("ranks"))
    found.start()
    try:
        wait_for(found.ready, "the engine of two ranks", 300, found.tail)
        yield found
    finally:
        found.stop()


def test_signatures_of_two_ranks_cold_and_after_a_hit(engine, environment):
    prompt = np.random.default_rng(3).integers(300, 4000, 300).tolist()
    body = {"model": NAME, "prompt": prompt, "max_tokens": 1, contract.KV_KEY: {"do_remote_decode": True}}
    with ReferenceClient(environment, MODEL) as reference:
        expected = np.array(reference.ask(prompt).prefill)
    for hits in (0, 288):
        before = engine.metric("vllm:prefix_cache_hits_total")
        answer = httpx.post(engine.url + "/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        assert engine.metric("vllm:prefix_cache_hits_total") - before == hits
        counts = decode_counts(answer.json()[contract.KV_KEY][contract.ELDR_KEY])
        assert counts.exact
        assert np.array_equal(counts.counts, expected)

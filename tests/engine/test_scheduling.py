"""The prefill half under vLLM's own scheduler, prefix cache and MultiConnector, beside a connector that loads blocks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams

from eldr.engine.hooks.connector import EldrConnector
from eldr.wire import decode_counts
from tests.engine.fakes import BLOCK, BLOCKS
from tests.engine.fuzz_runner import STORED, Transport, counts_of
from tests.engine.fuzzing import Setting

AT_ONCE = SimpleNamespace(random=lambda: 0.5, randrange=lambda _: 0, randint=lambda *_: 0)
"""In place of chance: what is loaded arrives with its step, and whole."""
SETTING = Setting(
    role="prefill",
    asynchronous=False,
    drafts=0,
    heads=False,
    policy="fcfs",
    blocks=BLOCKS,
    window=0,
    prefix_caching=True,
    chunk=0,
    on_failure="recompute",
    runner_v2=False,
    first=False,
)


@pytest.fixture
def served(simulated):
    with simulated(SETTING, AT_ONCE) as found:
        yield found


def ask(engine, prompt, *, tokens=1, stored=(0, False), **order):
    """Take a request, of which so many tokens are loaded, between steps or within one; return its name."""
    params = {"do_remote_decode": True, STORED: stored}
    sampling = SamplingParams(max_tokens=tokens, extra_args={"kv_transfer_params": params})
    return engine.add(list(prompt), sampling, **order)


def exact(engine, name, first=0):
    """Run; return whether a signature is exact. It must hold the tokens from the first one on."""
    engine.run()
    value, prompt = decode_counts(engine.answers[name]), engine.requests[name].prompt_token_ids
    assert np.array_equal(value.counts, counts_of(prompt, first, len(prompt)))
    return value.exact


def fill(engine):
    """Serve more than the cache holds, so that every block has counts of something else."""
    for n in range(5):
        assert exact(engine, ask(engine, range(n, n + 35)))


@pytest.mark.parametrize("between", [False, True])
def test_loaded_blocks_are_left_out_and_never_exact_for_whoever_finds_them(served, between):
    fill(served)
    prompt, loaded = list(range(100, 126)), 3 * BLOCK
    first = ask(served, prompt, stored=(loaded, between))
    served.step()
    beside = ask(served, prompt)  # if blocks come between steps, both run first in the same one
    for name in (first, beside):
        assert not exact(served, name, loaded)
    assert not exact(served, ask(served, [*prompt[:loaded], 1, 2, 3]), loaded)


def test_a_block_whose_step_preempts_its_own_request_is_not_taken_for_computed(simulated):
    """vLLM enters it in the prefix cache all the same: docs/upstream/preempted-blocks.md."""
    crowded = replace(SETTING, policy="priority", blocks=10, chunk=2 * BLOCK)  # one block is nobody's
    with simulated(crowded, AT_ONCE) as engine:
        assert exact(engine, ask(engine, range(40, 75))), "every block has counts"
        prompt = range(70, 101)
        low = ask(engine, prompt, priority=2)
        while engine.requests[low].num_computed_tokens < 4 * BLOCK:
            engine.step()
        ask(engine, [1, 2, 3, 4], tokens=3)
        for _ in range(2):  # the second one is to compute low's last two blocks, and has none left for high
            engine.step()
        assert engine.requests[low].num_preemptions == 1
        engine.run()
        again = ask(engine, prompt)
        engine.run()
        for name in (low, again):
            assert not decode_counts(engine.answers[name]).exact
        assert engine.reset(connectors=False)
        assert exact(engine, ask(engine, prompt))


def test_a_prompt_that_was_loaded_as_a_whole_has_no_counts_and_is_not_exact(served):
    assert not exact(served, ask(served, range(100, 112), stored=(11, True)), 12)


def test_blocks_that_are_computed_again_are_exact_again(served):
    ask(served, range(100, 120), stored=(3 * BLOCK, True))
    served.run()
    fill(served)
    assert exact(served, ask(served, range(100, 120)))


def test_hybrid_hits_stay_as_they_are_with_the_transport_alone(served, monkeypatch):
    for supported in (True, False):
        monkeypatch.setattr(Transport, "supports_divergent_local_hybrid_hits", supported)
        assert served.scheduler.connector.supports_divergent_local_hybrid_hits is supported


def test_an_engine_that_does_both_is_refused():
    config = SimpleNamespace(
        kv_transfer_config=KVTransferConfig(kv_connector="EldrConnector", kv_role="kv_both")
    )
    with pytest.raises(ValueError, match=r"expected kv_producer .* or kv_consumer .* got 'kv_both'"):
        EldrConnector(config, KVConnectorRole.SCHEDULER, None)

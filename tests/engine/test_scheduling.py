"""The prefill half under vLLM's own scheduler, prefix cache and MultiConnector, beside a connector that loads blocks."""

import pickle
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from eldr.engine import worker as worker_half
from eldr.engine.capture.cache import CacheGroup
from eldr.engine.hooks import plugin
from eldr.engine.hooks.connector import EldrConnector
from eldr.engine.steps import scheduled
from eldr.engine.worker import Worker
from eldr.wire import decode_counts
from tests.engine import fakes
from tests.engine.fakes import (
    BLOCK,
    BLOCKS,
    EXPERTS,
    LAYERS,
    TOP_K,
    Capture,
    Slots,
    engine_config,
    scheduler_of,
)
from tests.vllm.engine_side.eldr_test_connector import Idle

REMOTE = {"do_remote_decode": True}


class Loader(Idle):
    """Another connector that brings KV blocks from elsewhere, as offloading ones do."""

    offers: ClassVar[
        dict
    ] = {}  # request id -> prompt tokens that it has, whether it brings them between steps

    def __init__(self, *args):
        super().__init__(*args)
        self.loading, self.blocks = set(), []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        known, between = self.offers.get(request.request_id, (0, False))
        more = max(0, known - num_computed_tokens)
        return more, between and more > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            end = -(-self.offers[request.request_id][0] // BLOCK)
            first = end - -(-num_external_tokens // BLOCK)
            self.blocks += blocks.get_block_ids()[0][first:end]
            if self.offers[request.request_id][1]:
                self.loading.add(request.request_id)


def experts_of(tokens):
    """Return the experts of some tokens: in this model a token's id decides."""
    first = torch.tensor(tokens, dtype=torch.int32) % EXPERTS
    pair = torch.stack([first, (first + 1) % EXPERTS], dim=1)
    return pair[:, None, :].expand(len(tokens), LAYERS, TOP_K)


def counts_of(tokens):
    return np.stack(
        [np.bincount(layer.flatten(), minlength=EXPERTS) for layer in experts_of(tokens).unbind(1)]
    )


class Engine:
    """vLLM's scheduler, and our worker half behind a model that is a function of token ids."""

    def __init__(self, config):
        self.scheduler = scheduler_of(config)
        self.loader, self.connector = self.scheduler.connector.sub_connectors
        group = CacheGroup(0, "layer", BLOCK)
        self.worker = Worker(config, group, BLOCKS, prompts=True, reports=True)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.answers = {}

    def add(self, name, prompt, *, remote=True, resumable=False, tokens=1, priority=0):
        more = {"kv_transfer_params": REMOTE} if remote else None
        sampling = SamplingParams(max_tokens=tokens, extra_args=more)
        fields = {"resumable": resumable, "priority": priority}
        request = Request(name, prompt, sampling, None, block_hasher=self.hasher, **fields)
        self.scheduler.add_request(request)

    def step(self, lost=lambda block: False):
        """Run a step; of the blocks that are loaded in it, lost ones do not arrive."""
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        slots, tokens, sampled = [], [], []
        for name, before, n in scheduled(output):
            request = self.scheduler.requests[name]
            (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
            slots += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(before, before + n)]
            tokens += request.all_token_ids[before : before + n]
            sampled.append([7] if before + n >= request.num_tokens else [])
        self.worker.begin(pickle.loads(pickle.dumps(output.kv_connector_metadata.metadata[1])))
        Slots.slots, Capture.ids = (torch.tensor(slots), experts_of(tokens)) if slots else (None, None)
        report = pickle.loads(pickle.dumps(self.worker.finish()))
        arrived, self.loader.loading = self.loader.loading, set()
        broken, self.loader.blocks = set(filter(lost, self.loader.blocks)), []
        result = ModelRunnerOutput(
            names,
            {name: i for i, name in enumerate(names)},
            sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving=arrived,
                invalid_block_ids=broken,
                kv_connector_worker_meta=MultiKVConnectorWorkerMetadata((None, report)),
            ),
        )
        for outputs in self.scheduler.update_from_output(output, result).values():
            for answer in outputs.outputs:
                if answer.finished:
                    self.answers[answer.request_id] = (answer.kv_transfer_params or {}).get("eldr")

    def run(self):
        for _ in range(1000):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("requests that never end")

    def answer(self, name):
        self.run()
        return decode_counts(self.answers[name])


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that makes an engine, with settings of vLLM's scheduler."""
    plugin.register()
    monkeypatch.setitem(KVConnectorFactory._registry, "Loader", lambda: Loader)
    monkeypatch.setattr(Loader, "offers", {})
    monkeypatch.setattr(worker_half, "RoutingCapture", Capture)
    monkeypatch.setattr(worker_half, "StepSlots", Slots)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    transfer = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_producer",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "connectors": [
                {"kv_connector": "Loader", "kv_role": "kv_both"},
                {"kv_connector": "EldrConnector", "kv_role": "kv_producer"},
            ]
        },
    )
    init_none_hash(sha256)
    made = []

    def make(**settings):
        config = engine_config(tmp_path, transfer)
        for name, value in settings.items():
            setattr(config.scheduler_config, name, value)
        made.append(Engine(config))
        return made[-1]

    yield make
    for engine in made:
        engine.scheduler.shutdown()


@pytest.fixture
def engine(build):
    return build()


@pytest.mark.parametrize("between", [False, True])
def test_loaded_blocks_are_left_out_and_never_exact_for_whoever_finds_them(engine, between):
    for n in range(5):  # more than the cache holds: every block has counts of something else
        engine.add(f"before {n}", list(range(n, n + 35)))
        assert engine.answer(f"before {n}").exact
    prompt = list(range(100, 126))
    Loader.offers["loaded"] = (3 * BLOCK, between)
    engine.add("loaded", prompt)
    engine.step()
    engine.add("beside", prompt)  # if blocks come between steps, both run first in the same one
    for name in ("loaded", "beside"):
        value = engine.answer(name)
        assert not value.exact
        assert np.array_equal(value.counts, counts_of(prompt[3 * BLOCK :]))
    engine.add("later", [*prompt[: 3 * BLOCK], 1, 2, 3])
    value = engine.answer("later")
    assert not value.exact
    assert np.array_equal(value.counts, counts_of([1, 2, 3]))


def test_a_block_whose_step_preempts_its_own_request_is_not_taken_for_computed(build, monkeypatch):
    """vLLM enters it in the prefix cache all the same: docs/upstream/preempted-blocks.md."""
    monkeypatch.setattr(fakes, "BLOCKS", 10)  # one of which is nobody's
    engine = build(policy="priority", long_prefill_token_threshold=2 * BLOCK)
    engine.add("before", list(range(40, 75)))
    assert engine.answer("before").exact, "every block has counts"
    low = list(range(101, 132))
    engine.add("low", low, priority=2)
    while engine.scheduler.requests["low"].num_computed_tokens < 4 * BLOCK:
        engine.step()
    engine.add("high", [1, 2, 3, 4], tokens=3)
    for _ in range(2):  # the second one is to compute low's last two blocks, and has none left for high
        engine.step()
    assert engine.scheduler.requests["low"].num_preemptions == 1
    engine.run()
    engine.add("again", low)
    for name in ("low", "again"):
        value = engine.answer(name)
        assert value.exact == np.array_equal(value.counts, counts_of(low)), name
        assert not value.exact
    assert engine.scheduler.reset_prefix_cache()
    engine.add("anew", low)
    value = engine.answer("anew")
    assert value.exact
    assert np.array_equal(value.counts, counts_of(low))


def test_a_prompt_that_was_loaded_as_a_whole_has_no_counts_and_is_not_exact(engine):
    prompt = list(range(100, 112))
    Loader.offers["loaded"] = (11, True)
    engine.add("loaded", prompt)
    value = engine.answer("loaded")
    assert not value.exact
    assert not value.counts.any()


def test_blocks_that_are_computed_again_are_exact_again(engine):
    Loader.offers["loaded"] = (3 * BLOCK, True)
    engine.add("loaded", list(range(100, 120)))
    engine.run()
    for n in range(5):  # more than the cache holds: every block is computed into
        engine.add(f"after {n}", list(range(n, n + 35)))
        assert engine.answer(f"after {n}").exact
    Loader.offers.clear()
    engine.add("computed", list(range(100, 120)))
    assert engine.answer("computed").exact


def test_hybrid_hits_stay_as_they_are_with_the_transport_alone(engine, monkeypatch):
    for supported in (True, False):
        monkeypatch.setattr(Loader, "supports_divergent_local_hybrid_hits", supported)
        assert engine.scheduler.connector.supports_divergent_local_hybrid_hits is supported


def test_an_engine_that_does_both_is_refused():
    config = SimpleNamespace(
        kv_transfer_config=KVTransferConfig(kv_connector="EldrConnector", kv_role="kv_both")
    )
    with pytest.raises(ValueError, match=r"expected kv_producer .* or kv_consumer .* got 'kv_both'"):
        EldrConnector(config, KVConnectorRole.SCHEDULER, None)

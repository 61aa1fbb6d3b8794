"""Deadlines of pulls under vLLM's own scheduler, MultiConnector and the scheduler half of NIXL; only workers are missing."""

import pickle
from collections import Counter
from types import SimpleNamespace

import pytest
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import FinishReason, Request, RequestStatus

from eldr.contract import (
    LATE_DISCARDED,
    LATE_PREFILLED,
    METRIC_CUT_PROMPTS,
    METRIC_LATE_PULLS,
    PULL_BEFORE_KEY,
)
from eldr.engine import metrics
from eldr.engine import scheduler as scheduler_half
from eldr.engine.decode import deadline
from eldr.engine.decode.deadline import PullWatch
from eldr.engine.decode.ring import path_of
from eldr.engine.hooks import plugin
from eldr.engine.hooks.connector import EldrConnector
from eldr.engine.orders import Orders
from tests.engine.fakes import (
    BLOCK,
    REMOTE,
    Prometheus,
    engine_config,
    scheduler_of,
    transfer_config,
    worker_connector,
)

PROMPT = list(range(10))
NOW = 1000.0
CONNECTORS = {"first": ("EldrConnector", "NixlConnector"), "last": ("NixlConnector", "EldrConnector")}


class Engine:
    """A decode engine whose workers do what tests say."""

    def __init__(self, config, window):
        self.scheduler = scheduler_of(config, window)
        children = self.scheduler.connector.sub_connectors
        (self.ours,) = (at for at, child in enumerate(children) if isinstance(child, EldrConnector))
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.ended, self.late, self.cut = {}, Counter(), 0
        self.pulled, self.told = [], []  # whose blocks NIXL reads, and whose it only says it does not need

    def add(self, name, before=None, *, prompt=PROMPT, tokens=3, **fields):
        """Take a request that pulls its prompt, before a moment if there is one."""
        fields |= {} if before is None else {PULL_BEFORE_KEY: before}
        sampling = SamplingParams(max_tokens=tokens, extra_args={"kv_transfer_params": REMOTE | fields})
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self.hasher))

    def step(self, arrived=(), failed=()):
        """Run a step at whose end some pulls have ended; return its tokens by request, and what the worker is told."""
        output = self.scheduler.schedule()
        tokens = dict(output.num_scheduled_tokens)
        metadata = output.kv_connector_metadata.metadata
        for name, request in metadata[1 - self.ours].reqs_to_recv.items():
            (self.pulled if any(request.local_block_ids) else self.told).append(name)
        names = list(tokens)
        complete = [
            r.num_computed_tokens >= r.num_prompt_tokens for r in map(self.scheduler.requests.get, names)
        ]
        result = ModelRunnerOutput(
            names,
            {name: at for at, name in enumerate(names)},
            [[7] if done else [] for done in complete],
            kv_connector_output=KVConnectorOutput(finished_recving={*arrived}, failed_recving={*failed}),
        )
        for outputs in self.scheduler.update_from_output(output, result).values():
            self.ended |= {o.request_id: o.finish_reason for o in outputs.outputs if o.finished}
            stats = (outputs.scheduler_stats and outputs.scheduler_stats.kv_connector_stats) or {}
            ours = stats.get("EldrConnector", {"late": {}, "cut": 0})
            self.cut += ours["cut"]
            self.late += Counter(ours["late"])
        return tokens, pickle.loads(pickle.dumps(metadata[self.ours])).pulls

    def run(self):
        """Run until all requests have ended; return how many tokens were computed of each."""
        total = Counter()
        for _ in range(100):
            if not self.scheduler.has_unfinished_requests():
                self.step()  # in which the transport says what is left to say
                return total
            total += Counter(self.step()[0])
        raise AssertionError("requests that never end")


@pytest.fixture
def clock(monkeypatch):
    """Return what the plug-in takes for the time, to be changed."""
    now = SimpleNamespace(value=NOW)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: now.value))
    return now


@pytest.fixture
def build(tmp_path, monkeypatch, clock):
    """Return a function that makes engines."""
    plugin.register()
    monkeypatch.setattr(scheduler_half, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    made = []

    def make(order="last", policy="fail", window=0):
        transfer = transfer_config("kv_consumer", *CONNECTORS[order], on_failure=policy)
        made.append(Engine(engine_config(tmp_path, transfer), window))
        return made[-1]

    yield make
    for engine in made:
        engine.scheduler.shutdown()


@pytest.fixture(params=["first", "last"])
def engine(build, request):
    """Return an engine with the transport after and before our connector."""
    return build(request.param)


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_prompt_whose_deadline_has_passed_is_prefilled_here(engine, caplog, late):
    engine.add("a", NOW - late)
    assert engine.run() == {"a": len(PROMPT) + 2}
    assert engine.ended == {"a": FinishReason.LENGTH}
    assert engine.pulled == []
    assert engine.told == ["a"], "the prefill engine may free the blocks, and knows it once"
    assert engine.late == {LATE_PREFILLED: 1}
    assert f"request a: its KV had to be pulled {late:.3f} s ago" in caplog.text


def test_a_request_that_is_aborted_before_it_has_blocks_frees_those_of_the_prefill_engine(build):
    engine = build("first")
    engine.add("a", NOW - 1)
    engine.step()  # in which it is refused, and has to come back
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.step()
    assert (engine.pulled, engine.told) == ([], ["a"])


@pytest.mark.parametrize("fields", [{PULL_BEFORE_KEY: NOW + 0.5}, {PULL_BEFORE_KEY: None}, {}])
def test_what_is_in_time_or_has_no_deadline_is_pulled(engine, fields):
    engine.add("a", **fields)
    watched = {"a": NOW + 0.5} if fields.get(PULL_BEFORE_KEY) else {}
    assert engine.step() == ({}, watched)
    assert engine.step(arrived=["a"]) == ({}, watched)
    assert engine.step() == ({"a": 1}, {}), "the prompt's last token"
    engine.run()
    assert (engine.pulled, engine.told, engine.late) == (["a"], [], {})


def test_what_has_arrived_is_not_watched_while_it_waits_for_its_turn(engine):
    engine.add("a", NOW + 1)
    engine.step()
    for n in range(4):  # as many as run at a time
        engine.add(f"other {n}", prompt=[n, 1], tokens=9, do_remote_prefill=False)
    tokens, pulls = engine.step()
    assert (len(tokens), pulls) == (4, {"a": NOW + 1})
    engine.step(arrived=["a"])
    tokens, pulls = engine.step()
    assert (len(tokens), pulls) == (4, {})
    assert engine.run()["a"] == 3
    assert engine.late == {}


@pytest.mark.parametrize("value", ["soon", True, float("nan"), float("inf"), 1e13, [1], {}])
def test_a_deadline_that_cannot_be_read_is_none_and_is_logged(engine, caplog, value):
    engine.add("a", value)
    assert engine.step() == ({}, {})
    assert engine.pulled == ["a"]
    assert "request a has no deadline for its KV: eldr_pull_before: expected Unix time" in caplog.text


def test_a_request_that_waits_for_blocks_until_its_deadline_has_passed_is_prefilled_here(engine, clock):
    for first in (0, 20):
        engine.add(f"large {first}", prompt=list(range(first, first + 70)), tokens=6, do_remote_prefill=False)
    engine.add("a", NOW + 5, prompt=list(range(50, 50 + 4 * BLOCK)))
    while engine.scheduler.kv_cache_manager.usage < 0.9:
        engine.step()
    assert engine.scheduler.requests["a"].status == RequestStatus.WAITING
    clock.value += 5
    engine.run()
    assert engine.pulled == []
    assert engine.late == {LATE_PREFILLED: 1}
    assert set(engine.ended.values()) == {FinishReason.LENGTH}


def test_a_preempted_request_is_not_pulled_either_and_counts_once(engine):
    engine.add("a", NOW - 1, tokens=4)
    for _ in range(3):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.scheduler.requests["a"].num_preemptions == 1
    while engine.scheduler.has_unfinished_requests():
        assert engine.step()[1] == {}, "nothing is in flight"
    engine.run()
    assert engine.pulled == []
    assert engine.told.count("a") == 1
    assert engine.late == {LATE_PREFILLED: 1}


def test_a_preempted_request_that_was_pulled_is_computed_here_whenever_it_resumes(engine, clock):
    engine.add("a", NOW + 1, tokens=4)
    engine.step(arrived=["a"])
    engine.step()
    clock.value += 9
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert (engine.pulled, engine.late) == (["a"], {})


def test_a_pull_that_fails_by_its_deadline_ends_the_request_and_keeps_its_blocks_until_nixl_is_done(engine):
    engine.add("a", NOW + 1)
    engine.step()
    assert engine.step(failed=["a"])[1] == {"a": NOW + 1}
    assert engine.ended == {"a": FinishReason.ERROR}
    assert engine.step() == ({}, {})
    assert engine.scheduler.kv_cache_manager.usage > 0
    engine.step(arrived=["a"])
    assert engine.scheduler.kv_cache_manager.usage == 0


@pytest.mark.parametrize("order", CONNECTORS)
def test_where_failed_loads_are_recomputed_a_late_pull_is(build, order):
    engine = build(order, policy="recompute")
    engine.add("a", NOW + 1)
    engine.step()
    engine.step(failed=["a"])
    engine.step(arrived=["a"])
    assert engine.run() == {"a": len(PROMPT) + 2}
    assert engine.ended == {"a": FinishReason.LENGTH}


@pytest.mark.parametrize("order", CONNECTORS)
@pytest.mark.parametrize("fields", [{}, {PULL_BEFORE_KEY: NOW + 1}])
def test_a_prompt_of_which_a_window_would_lack_a_block_is_prefilled_here(build, order, fields):
    engine = build(order, window=2 * BLOCK)
    remote = {"remote_block_ids": [[1, 2, 3, 4], [1, 2, 3]]}
    lengths = {"whole": 3 * BLOCK - 2, "cut": 3 * BLOCK - 1, "longer": 3 * BLOCK}
    for name, tokens in lengths.items():
        engine.add(name, prompt=list(range(tokens)), **remote, **fields)
    engine.step()
    engine.step(arrived=["whole", "longer"])
    computed = engine.run()
    assert set(engine.ended.values()) == {FinishReason.LENGTH}
    assert (sorted(engine.pulled), engine.told) == (["longer", "whole"], ["cut"])
    assert (engine.cut, engine.late) == (1, {}), "it was not late"
    assert computed["whole"] == computed["longer"] == 3


def test_a_workers_watch_tells_once_of_each_pull_that_is_not_there_in_time(clock, caplog):
    stats = metrics.EngineStats()
    watch = PullWatch(stats.add_late_pull)
    watch.begin({"a": NOW + 1, "b": NOW + 5})
    assert watch.late() == set()
    clock.value = NOW + 3
    assert watch.late() == {"a"}
    assert watch.late() == set()
    assert "request a: its KV has not arrived, and had to be there 2.000 s ago" in caplog.text
    watch.begin({"a": NOW + 1, "b": NOW + 5})
    assert watch.late() == set()
    watch.begin({"a": NOW + 1})
    clock.value = NOW + 9
    assert watch.late() == set(), "b has arrived"
    watch.begin({"c": NOW + 9})
    assert not watch._failed, "those that have ended are forgotten"
    assert watch.late() == {"c"}
    assert stats.take().data["late"] == {LATE_DISCARDED: 2}


def test_prometheus_sees_what_both_processes_counted():
    prometheus = Prometheus()

    def seen():
        name = f"{METRIC_LATE_PULLS}_total"
        return [prometheus.seen(name, outcome=one) for one in (LATE_PREFILLED, LATE_DISCARDED)]

    assert seen() == [0, 0], "there before the first one, so that it is an increase"
    scheduler, worker = metrics.EngineStats(), metrics.EngineStats()
    for stats, outcome in ((scheduler, LATE_PREFILLED), (worker, LATE_DISCARDED), (worker, LATE_PREFILLED)):
        stats.add_late_pull(outcome)
    scheduler.add_cut_prompt()
    prometheus.observe(worker.take().aggregate(scheduler.take()).to_dict())
    assert seen() == [2, 1]
    assert prometheus.seen(f"{METRIC_CUT_PROMPTS}_total") == 1


@pytest.mark.parametrize("reports", [True, False])
def test_every_rank_fails_late_pulls_and_the_first_one_counts_them(clock, reports):
    connector = worker_connector(None, reports=reports)
    connector.bind_connector_metadata(Orders(pulls={"a": NOW - 1}))
    results = connector.get_transfer_results(set())
    assert (results.failed_recving, results.finished_recving) == ({"a"}, set())
    stats = connector.get_kv_connector_stats()
    assert (stats.data["late"] == {LATE_DISCARDED: 1}) if reports else (stats is None)
    assert connector.get_kv_connector_stats() is None


def test_vllm_fails_a_request_of_which_one_rank_said_so_when_all_ranks_are_done():
    def step(*outputs):
        results = [
            ModelRunnerOutput(
                [], {}, kv_connector_output=KVConnectorOutput(finished_recving=done, failed_recving=failed)
            )
            for done, failed in outputs
        ]
        merged = ranks.aggregate(results).kv_connector_output
        return merged.finished_recving, merged.failed_recving

    ranks = KVOutputAggregator(2)
    assert step((set(), {"a"}), ({"a"}, set())) == (None, set())
    assert step(({"a"}, set()), (set(), set())) == ({"a"}, {"a"})

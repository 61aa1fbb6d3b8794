"""Every function that runs behind a hook of vLLM fails in turn: the hook answers all the same, and no count is wrong.

The functions are found, not listed: a new one that no hook guards fails here.
"""

import asyncio
import contextlib
import errno
import importlib
import inspect
import json
import os
import pickle
import pkgutil
from types import SimpleNamespace

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput

import eldr.engine
from eldr.contract import METRIC_COUNTING, PULL_BEFORE_KEY
from eldr.engine.decode import deadline
from eldr.engine.errors import UnsupportedEngineError
from eldr.engine.hooks import connector as hooks
from eldr.engine.hooks import plugin
from eldr.engine.hooks.endpoint import ActivationsEndpoint, activations
from eldr.engine.metrics import EngineStats
from eldr.wire import decode_counts
from tests.engine.fakes import BLOCKS, LAYERS, REMOTE, Prometheus, engine_config
from tests.engine.halves import GROUP, TOP_K, output, request, route

PACKAGES = (
    *("decode", "prefill", "scheduler", "worker", "messages", "metrics", "steps"),
    *("capture.kernels", "capture.staging"),
)
LEFT_OUT = {
    "scheduler:kept_records",  # refuses a wrong setting when the engine starts
    # what vLLM itself calls, and what a failed hook answers with
    *(f"messages:StepReport.{name}" for name in ("__init__", "__getstate__", "aggregate")),
    *(f"metrics:EnginePromMetrics.{name}" for name in ("__init__", "observe")),
    *(f"metrics:EngineStats.{name}" for name in ("__init__", "aggregate", "is_empty", "reduce", "reset")),
    *(f"decode.deadline:{name}" for name in ("offered", "withdraw")),
    *(f"steps:{name}" for name in ("transfer_of", "is_pulled")),
    *(f"metrics:{name}" for name in ("_left_out", "stopped")),
    "prefill.prompts:unavailable",
    "decode.deadline:PullWatch.__init__",
    # by which ranks wait for each other
    *(f"worker:{name}" for name in ("agree", "union_group")),
}
NEVER = {
    "decode.tracking:Tracker.clear",  # once counting has stopped: test_counting
    *(f"decode.ring:RingReader.{name}" for name in ("close", "slots")),
    "prefill.provenance:CountedBlocks._hash",  # of blocks that another request computed
    # of engines of several ranks, and of accelerators
    "worker:Worker.share",
    "messages:StepReport._copy_to_host",
    "capture.kernels:flag_experts",
    "capture.kernels:sum_up_step",
}


OPEN = {
    # the watch itself, and what it is told of pulls that have begun when it fails: nothing is pulled afterwards
    *(f"decode.deadline:PullWatch.{name}" for name in ("begin", "late")),
    *(f"decode.deadline:PullDeadlines.{name}" for name in ("allocated", "pulls", "arrived")),
    *(f"scheduler:Scheduler.{name}" for name in ("allocated", "orders")),
}


@pytest.fixture
def rings():
    """Have records where an engine keeps them."""


def fail(*_, **__):
    raise KeyError("a field that vLLM renamed")


def functions():
    """Return each function of ours that runs behind a hook: its name, who has it, its attribute."""
    found = {}
    for package in PACKAGES:
        root = importlib.import_module(f"eldr.engine.{package}")
        names = [one.name for one in pkgutil.iter_modules(getattr(root, "__path__", []), f"{root.__name__}.")]
        for name in names or [root.__name__]:
            module = importlib.import_module(name)
            short = name.removeprefix("eldr.engine.")
            for attribute, value in vars(module).items():
                if getattr(value, "__module__", None) != name:
                    continue
                if inspect.isfunction(value):
                    found[f"{short}:{attribute}"] = (module, attribute)
                elif inspect.isclass(value) and not hasattr(value, "__dataclass_fields__"):
                    for method, of_it in vars(value).items():
                        special = method.startswith("__") and method not in ("__init__", "__getstate__")
                        if (inspect.isfunction(of_it) or isinstance(of_it, property)) and not special:
                            found[f"{short}:{attribute}.{method}"] = (value, method)
    return found


FUNCTIONS = functions()
TARGETS = sorted(FUNCTIONS.keys() - LEFT_OUT)


def break_(monkeypatch, name, hits):
    """Have a function fail wherever it is known."""

    def failing(*_, **__):
        hits.append(name)
        fail()

    owner, attribute = FUNCTIONS[name]
    value = vars(owner)[attribute]
    if inspect.isclass(owner):
        monkeypatch.setattr(owner, attribute, property(failing) if isinstance(value, property) else failing)
        return
    for one in pkgutil.walk_packages(eldr.engine.__path__, "eldr.engine."):
        module = importlib.import_module(one.name)
        if vars(module).get(attribute) is value:
            monkeypatch.setattr(module, attribute, failing)


class Engine:
    """The connectors of an engine's two processes, called as vLLM calls them."""

    def __init__(self, config, caches):
        self.halves = [
            hooks.EldrConnector(config, role, caches)
            for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
        ]
        self.config, (self.scheduler, self.worker) = config, self.halves
        self.worker.register_kv_caches({})
        self.prometheus = Prometheus(config, hooks.EldrConnector.build_prom_metrics)
        self.late: set[str] = set()

    def add(self, asked):
        """Take a request, until it has its blocks; return whether its KV is pulled."""
        self.scheduler.on_new_request(asked)
        for _ in range(2):
            matched, between = self.scheduler.get_num_new_matched_tokens(asked, 0)
            assert not between
            if matched is not None:
                break
        assert matched == 0, "asked again without end"
        pulled = bool((asked.kv_transfer_params or {}).get("do_remote_prefill"))
        self.scheduler.update_state_after_alloc(asked, None, 0)
        return pulled

    def step(self, new=(), cached=(), blocks=None, drafts=None, done=()):
        orders = pickle.loads(
            pickle.dumps(self.scheduler.build_connector_meta(output(new, cached, blocks, drafts=drafts)))
        )
        route(new, cached, blocks)
        self.worker.bind_connector_metadata(orders)
        self.worker.start_load_kv(None, attn_metadata=None)
        self.worker.finish_forward()
        report = self.worker.build_connector_worker_meta()
        self.late |= self.worker.get_transfer_results(set()).failed_recving
        told = KVConnectorOutput(finished_recving=set(done))
        told.kv_connector_worker_meta = pickle.loads(pickle.dumps(report))
        return told

    def serve(self, name, kv):
        """Serve a request whose every token uses the experts 0 and 1; return what its answer carries."""
        asked = request(name, 4, kv=dict(kv), hashes=[f"of {name}"])
        self.add(asked)
        blocks = {name: [1, 2]}
        for at in (
            {"new": [(name, 0, 4)]},
            {"cached": [(name, 4, 1)]},
            {"cached": [(name, 5, 2)], "drafts": {name: 1}},
        ):
            self.scheduler.update_connector_output(self.step(**at, blocks=blocks))
        asked.num_output_tokens = 4
        held, answer = self.scheduler.request_finished_all_groups(asked, ([], []))
        assert not held
        for at in ({}, {"new": [("next", 0, 1)], "blocks": {"next": [3]}}):
            self.scheduler.update_connector_output(self.step(**at))
        stats = [half.get_kv_connector_stats() for half in self.halves]
        for told in filter(None, stats):
            arrived = hooks.EldrConnector.build_kv_connector_stats(told.data)
            assert isinstance(arrived.is_empty(), bool)
            assert isinstance(arrived.aggregate(EngineStats()).reduce(), dict)
            self.prometheus.observe(arrived.data)
            arrived.reset()
        return answer

    def records(self):
        """Return what the engine's server has of finished requests."""
        state = SimpleNamespace()
        asyncio.run(ActivationsEndpoint().init_state(SimpleNamespace(vllm_config=self.config), state, None))
        with contextlib.suppress(KeyError):  # then an answer of ours fails, none of vLLM's
            answer = activations(SimpleNamespace(app=SimpleNamespace(state=state)))
            return json.loads(answer.body)["records"] if answer.status_code == 200 else []
        return []


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """vLLM's configuration of an engine, by role."""
    plugin.register()
    with pytest.MonkeyPatch.context() as env:
        env.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        return {
            role: engine_config(
                tmp_path_factory.mktemp(role), KVTransferConfig(kv_connector="EldrConnector", kv_role=role)
            )
            for role in ("kv_producer", "kv_consumer")
        }


@pytest.fixture
def build(engine, monkeypatch, configs):
    """Return a function that starts an engine of a role."""
    monkeypatch.setattr(hooks, "get_tp_group", lambda: SimpleNamespace(is_first_rank=True))
    shape = {"block_size": GROUP.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [
        KVCacheGroupSpec(["sliding"], SlidingWindowSpec(sliding_window=8, **shape)),
        KVCacheGroupSpec([GROUP.layer_name], FullAttentionSpec(**shape)),
    ]
    monkeypatch.setattr(hooks, "full_attention_group", lambda _: GROUP)

    clock = SimpleNamespace(value=100.0)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: clock.value))

    def start(role, balance=None):
        clock.value = 100.0
        monkeypatch.setattr(hooks.start, "start", lambda *_, **__: balance)
        engine = Engine(configs[role], KVCacheConfig(BLOCKS, [], groups))
        engine.clock = clock
        return engine

    return start


PREFILL, DECODE = {"do_remote_decode": True}, REMOTE | {PULL_BEFORE_KEY: 1e12}
SLOW = REMOTE | {PULL_BEFORE_KEY: 200.0}
LATE = REMOTE | {PULL_BEFORE_KEY: 1.0}


def check_prefill(answer):
    said = answer and answer["eldr"]
    if said and "counts" in said and said["exact"]:
        assert decode_counts(said).counts[:, :TOP_K].sum() == 4 * LAYERS * TOP_K
        return True
    return False


def serve_both(build, before=lambda: None, *, is_open=False):
    """Serve requests on both roles, also one whose pull is late before and one during its step."""
    prefill, decode = build("kv_producer"), build("kv_consumer")
    prefill.serve("a", PREFILL), decode.serve("a", DECODE)
    before()
    for name in ("b", "c"):
        check_prefill(prefill.serve(name, PREFILL))
        decode.serve(name, DECODE)
    streamed = request("streamed", 4, kv=PREFILL, resumable=True)
    prefill.add(streamed)
    prefill.scheduler.request_finished(streamed, [])
    assert not decode.add(request("late", 4, kv=dict(LATE))), "pulled after its deadline"
    if decode.add(request("slow", 4, kv=dict(SLOW))):
        decode.scheduler.update_connector_output(decode.step())
        decode.clock.value = 300.0
        decode.scheduler.update_connector_output(decode.step())
        assert is_open or "slow" in decode.late, "its KV arrives after its deadline, and is used"
    records = decode.records()
    for engine in (prefill, decode):
        assert engine.scheduler.reset_cache() is True
        for half in engine.halves:
            half.shutdown()
    return records


def exact(records):
    """Return the requests that are told to be exact, and are."""
    found = [(one["request_id"], decode_counts(one)) for one in records if one["exact"]]
    assert all(one.counts[:, :TOP_K].sum() == one.tokens * LAYERS * TOP_K for _, one in found)
    return [name for name, _ in found]


def test_all_is_counted_while_nothing_fails(build):
    assert exact(serve_both(build)) == ["a", "b", "c"]
    prefill = build("kv_producer")
    assert check_prefill(prefill.serve("d", PREFILL))
    prefill.scheduler.shutdown()


@pytest.mark.parametrize("name", TARGETS)
def test_hooks_answer_whatever_fails(build, monkeypatch, name):
    hits = []
    with monkeypatch.context() as broken:
        exact(serve_both(build, lambda: break_(broken, name, hits), is_open=name in OPEN))
    with monkeypatch.context() as broken:
        break_(broken, name, hits)
        exact(serve_both(build, is_open=name in OPEN))
    assert bool(hits) != (name in NEVER), "it never ran" if not hits else "it does run: take it from the list"


def test_an_engine_whose_configuration_would_be_counted_wrongly_serves_and_keeps_deadlines(
    build, monkeypatch
):
    monkeypatch.setattr(hooks.compatibility, "problems", lambda *_, **__: ["pp=2: why", "dbo: why"])
    assert serve_both(build) == []
    engine = build("kv_producer")
    assert engine.serve("a", PREFILL)["eldr"]["unavailable"] == "pp=2: why; dbo: why"
    assert engine.prometheus.seen(METRIC_COUNTING) == 0
    monkeypatch.setattr(hooks.setting, "read", lambda _: True)
    with pytest.raises(UnsupportedEngineError, match="pp=2: why; dbo: why; ELDR_BALANCE=Activations: "):
        build("kv_consumer")


def told(engine):
    """Return what Prometheus sees of whether an engine counts."""
    stats = engine.scheduler.get_kv_connector_stats()
    if stats is not None:
        engine.prometheus.observe(stats.data)
    return engine.prometheus.seen(METRIC_COUNTING)


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
@pytest.mark.parametrize("broken", ["scheduler", "worker", "statistics", "step"])
def test_an_engine_that_counts_no_more_says_so_to_prometheus_and_in_its_answers(
    build, monkeypatch, role, broken
):
    kv = PREFILL if role == "kv_producer" else DECODE
    assert told(build(role)) == 1
    with monkeypatch.context() as fault:
        if broken in ("scheduler", "worker"):
            fault.setattr(getattr(hooks, broken.capitalize()), "__init__", fail)
        elif broken == "statistics":
            fault.setattr(EngineStats, "take", fail)
        engine = build(role)
        if broken == "step":
            fault.setattr(type(engine.worker._worker), "finish", fail)
        answer = engine.serve("a", kv)
        assert told(engine) == 0
    if role == "kv_producer" and broken != "statistics":
        assert answer["eldr"]["unavailable"].startswith("counting failed")


def test_a_decode_engine_serves_on_a_full_dev_shm_and_says_what_it_lacks(build, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    decode = build("kv_consumer")
    decode.serve("a", DECODE)
    assert "No space left on device; mount a larger /dev/shm" in decode.scheduler._counting.stopped
    assert not decode.add(request("late", 4, kv=dict(LATE))), "pulled after its deadline"

"""Tests of what runs inside an engine; without torch and vLLM they are not collected."""

import importlib.util
import os
from contextlib import closing
from types import SimpleNamespace

import pytest

# Triton's interpreter runs GPU kernels on a CPU; it is chosen when triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    """Say where these tests run if they do not run here."""
    if importlib.util.find_spec("vllm") is None:
        return "tests/engine: not collected, they need torch and vLLM; run make e2e-vllm"
    return None


@pytest.fixture(autouse=True)
def rings(monkeypatch, tmp_path):
    """Have schedulers keep their records in a folder of the test."""
    from eldr.engine import scheduler
    from eldr.engine.decode.ring import path_of

    monkeypatch.setattr(scheduler, "rings_of", lambda engine, _: [path_of(engine, tmp_path)])


@pytest.fixture
def engine(monkeypatch):
    """Replace what needs a model: the routing and the slots of a step."""
    from eldr.engine import worker
    from tests.engine.fakes import Capture, Slots

    monkeypatch.setattr(worker, "RoutingCapture", Capture)
    monkeypatch.setattr(worker, "StepSlots", Slots)


@pytest.fixture
def halves(engine, tmp_path):
    """Return a function that makes both halves of an engine, which counts prompts as well or answers alone."""
    from eldr.engine.decode.ring import RingReader, path_of
    from tests.engine.halves import Halves, config, decode_half, prefill_half, worker_of

    made = []

    def make(*, prompts):
        of_engine = config(f"d{len(made)}")
        half = (prefill_half if prompts else decode_half)(of_engine)
        of_engine.num_speculative_tokens = 1
        reader = RingReader(ring := path_of(f"d{len(made)}", tmp_path))
        made.append((half, reader, ring))
        return Halves(half, worker_of(of_engine, prompts=prompts), reader)

    yield make
    for half, reader, ring in made:
        reader.close()
        half.close()
        assert not ring.exists()


@pytest.fixture
def decoding(halves):
    """Return both halves of an engine that pulls its prompts."""
    return halves(prompts=False)


@pytest.fixture
def serving(halves):
    """Return both halves of an engine that computes prompts and answers."""
    return halves(prompts=True)


@pytest.fixture
def simulated(engine, tmp_path, monkeypatch):
    """Return a function that starts a simulated engine, as a context."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    from eldr.engine import scheduler
    from eldr.engine.decode import deadline
    from eldr.engine.hooks import plugin
    from tests.engine.fuzz_runner import Transport
    from tests.engine.fuzzing import RING, Engine

    plugin.register()
    clock = SimpleNamespace(value=0.0)
    monkeypatch.setitem(KVConnectorFactory._registry, "Transport", lambda: Transport)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: clock.value))
    monkeypatch.setattr(scheduler, "rings_of", lambda *_: [tmp_path / RING])
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    init_none_hash(sha256)
    return lambda setting, chance: closing(Engine(setting, chance, tmp_path, clock))

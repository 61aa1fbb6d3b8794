"""Tests of what runs inside an engine; without torch and vLLM they are not collected."""

import importlib.util
import os

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


@pytest.fixture
def engine(monkeypatch):
    """Replace what needs a model: the routing and the slots of a step."""
    from eldr.engine.decode import worker as decode_worker
    from eldr.engine.prefill import worker as prefill_worker
    from tests.engine.fakes import Capture, Slots

    for module in (prefill_worker, decode_worker):
        monkeypatch.setattr(module, "RoutingCapture", Capture)
        monkeypatch.setattr(module, "StepSlots", Slots)


@pytest.fixture
def decoding(engine, monkeypatch, tmp_path):
    """Return both halves of a decode engine, and a way to read its records."""
    from eldr.engine.decode import scheduler
    from eldr.engine.decode.records import page
    from eldr.engine.decode.ring import RingReader, path_of
    from eldr.engine.decode.worker import DecodeWorker
    from tests.engine.halves import GROUP, NO_WINDOWS, config

    monkeypatch.setattr(scheduler, "rings_of", lambda instance, _: [path_of(instance, tmp_path)])
    half = scheduler.DecodeScheduler(config("d"), GROUP, NO_WINDOWS, records=4)
    asked = config("d")
    asked.num_speculative_tokens = 1
    worker = DecodeWorker(asked, GROUP, n_blocks=10, reports=True)
    reader = RingReader(path_of("d", tmp_path))
    yield half, worker, lambda: page([reader], after="0", limit=9)["records"]
    reader.close()
    half.close()

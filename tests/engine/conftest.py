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


def counts(tmp_path, hash_size):
    """Yield both halves of an engine, and a way to read its records."""
    from eldr.engine.decode.records import page
    from eldr.engine.decode.ring import RingReader, path_of
    from eldr.engine.scheduler import Scheduler
    from eldr.engine.worker import Worker
    from tests.engine.halves import GROUP, NO_WINDOWS, config

    half = Scheduler(config("d"), GROUP, NO_WINDOWS, records=4, hash_size=hash_size)
    asked = config("d")
    asked.num_speculative_tokens = 1
    worker = Worker(asked, GROUP, n_blocks=10, prompts=hash_size is not None, reports=True)
    reader = RingReader(path_of("d", tmp_path))
    yield half, worker, lambda: page([reader], after="0", limit=9)["records"]
    reader.close()
    half.close()


@pytest.fixture
def decoding(engine, tmp_path):
    """Return both halves of a decode engine, and a way to read its records."""
    yield from counts(tmp_path, None)


@pytest.fixture
def serving(engine, tmp_path):
    """Return both halves of an engine that computes prompts and answers, and a way to read its records."""
    from tests.engine.halves import GROUP

    yield from counts(tmp_path, GROUP.block_size)

"""Whatever fails while an engine counts: it serves on, says why, and hands out no counts that may be wrong."""

import logging
from types import SimpleNamespace

import pytest

from eldr.contract import PULL_BEFORE_KEY
from eldr.engine import messages, metrics
from eldr.engine.counting import Counting
from eldr.engine.errors import RanksDisagreeError
from eldr.engine.messages import StepReport
from eldr.engine.scheduler import Scheduler
from eldr.engine.worker import Worker
from tests.engine.halves import GROUP, NO_WINDOWS, REMOTE, config, output, prefill_half, request, route, sent

WHY = "a field that vLLM renamed"


def fail(*_, **__):
    raise KeyError(WHY)


@pytest.fixture
def wrong(engine, caplog):
    """Errors that the plug-in logged."""
    caplog.set_level(logging.ERROR, "vllm.eldr")
    return lambda: [one for one in caplog.records if one.levelno == logging.ERROR]


def step(half, worker, new=(), cached=(), blocks=None):
    """Run a step in which every token uses experts 0 and 1."""
    route(new, cached, blocks)
    worker.begin(sent(half.orders(output(new, cached, blocks))))
    worker.load(None)
    report = worker.finish()
    return None if report is None else sent(report)


def prefilled(half, worker, name):
    """Serve a prompt of four tokens; return what its answer says."""
    asked = request(name, 4, kv=REMOTE)
    half.add(asked)
    report = step(half, worker, new=[(name, 0, 4)], blocks={name: [1]})
    answer = half.end(asked)
    half.update(report)
    half.stats()
    return answer["eldr"]


class Failing:
    """Something of which one method fails."""

    def __init__(self, inner, name):
        self._inner = inner
        setattr(self, name, fail)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def spoil(half, part, name):
    setattr(half, part, Failing(getattr(half, part), name))


@pytest.fixture
def prefill():
    half = prefill_half(config())
    yield half, Worker(config(), GROUP, 40, prompts=True, reports=True)
    half.close()


def test_a_prompt_is_counted_while_nothing_fails(wrong, prefill):
    assert prefilled(*prefill, "a")["exact"] is True
    assert not wrong()


def test_an_answer_that_cannot_be_written_is_none(wrong, prefill, monkeypatch):
    monkeypatch.setattr(messages, "encode_counts", fail)
    assert "counting failed" in prefilled(*prefill, "a")["unavailable"]
    monkeypatch.undo()
    assert "counting failed" in prefilled(*prefill, "b")["unavailable"]


def decoded(half, worker, name):
    """Serve a request whose prompt of four tokens was pulled, for three tokens."""
    asked = request(name, 4, kv={"do_remote_prefill": True, PULL_BEFORE_KEY: 1e12})
    half.add(asked)
    half.pulls.allocated(asked)
    half.update(step(half, worker, new=[(name, 3, 1)], blocks={name: [1, 2]}))
    for at in (4, 5):
        half.update(step(half, worker, cached=[(name, at, 1)], blocks={name: [1, 2]}))
    asked.num_output_tokens = 3
    half.end(asked)
    half.update(step(half, worker))
    half.update(step(half, worker, new=[("last", 0, 1)], blocks={"last": [5]}))
    stats = half.stats()
    return {} if stats is None else stats.data["records"]


@pytest.fixture
def decode():
    half = Scheduler(config("counting"), GROUP, NO_WINDOWS, records=4)
    yield half, Worker(config("counting"), GROUP, 40, prompts=False, reports=True)
    half.close()


def test_a_prefill_engine_whose_statistics_fail_serves_on(wrong, prefill):
    spoil(prefill[0], "_stats", "take")
    assert prefilled(*prefill, "a")["exact"] is True
    assert "counting failed" in prefilled(*prefill, "b")["unavailable"]
    assert len(wrong()) == 2


def test_a_report_whose_counts_do_not_arrive_says_so_to_the_other_process(wrong, decode, monkeypatch):
    assert decoded(*decode, "a") == {"exact": 1}
    with monkeypatch.context() as broken:
        broken.setattr(StepReport, "arrived", fail)
        assert decoded(*decode, "b").get("exact", 0) == 0
    assert decoded(*decode, "c").get("exact", 0) == 0
    assert len([one for one in wrong() if one.exc_info]) == 1, "logged once"


def test_metrics_that_fail_are_left_out(caplog):
    caplog.set_level(logging.WARNING, "vllm.eldr")
    metrics.EnginePromMetrics.__new__(metrics.EnginePromMetrics).observe({"active": []})
    assert metrics.EngineStats().aggregate(SimpleNamespace(data={})).is_empty()
    assert "left out of the metrics: AttributeError" in caplog.text
    assert "left out of the metrics: KeyError('active')" in caplog.text


def test_pulls_keep_their_deadlines_when_nothing_is_counted(wrong, decode):
    half, _ = decode
    spoil(half, "_tracker", "step")
    asked = request("a", 4, kv={"do_remote_prefill": True, PULL_BEFORE_KEY: 1e12})
    half.add(asked)
    half.pulls.allocated(asked)
    assert half.orders(output()).pulls == {"a": 1e12}


def test_of_requests_that_come_after_counting_has_stopped_nothing_is_kept(wrong, decode):
    half, worker = decode
    half._counting.stop("no memory")
    for number in range(20):
        decoded(half, worker, f"r{number}")
        assert len(half._tracker) <= 1, "the one that goes on"
    kept = half._ended, half._empty, half.pulls._deadlines, half.pulls._pulling
    assert not any(kept)


def test_requests_without_counts_are_told_once(wrong, decode):
    half, _ = decode
    half._counting.stop("no memory")
    streamed, never = request("a", 4, resumable=True, generated=2), request("b", 4)
    for one in (streamed, never):
        half.add(one)
        half.end(one)
    assert half.stats().data["records"] == {"unavailable": 1}


def test_ranks_that_disagree_end_the_engine_all_the_same():
    counting = Counting("activations")
    with pytest.raises(RanksDisagreeError), counting:
        raise RanksDisagreeError("maps differ")
    with pytest.raises(KeyboardInterrupt), counting:
        raise KeyboardInterrupt
    assert not counting.stopped

"""Whatever fails while an engine counts: it serves on, says why, and hands out no counts that may be wrong."""

import logging
from types import SimpleNamespace

import pytest

from eldr.contract import PULL_BEFORE_KEY
from eldr.engine import messages, metrics
from eldr.engine.counting import Counting
from eldr.engine.messages import StepReport
from tests.engine.halves import REMOTE, output, request

WHY = "a field that vLLM renamed"


def fail(*_, **__):
    raise KeyError(WHY)


@pytest.fixture
def wrong(engine, caplog):
    """Errors that the plug-in logged."""
    caplog.set_level(logging.ERROR, "vllm.eldr")
    return lambda: [one for one in caplog.records if one.levelno == logging.ERROR]


def prefilled(at, name):
    """Serve a prompt of four tokens; return what its answer says."""
    asked = at.add(name, 4, [1], kv=REMOTE)
    report = at.report((name, 0, 4))
    answer = at.half.end(asked)
    at.half.update(report)
    at.half.stats()
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


def test_an_answer_that_cannot_be_written_is_none(wrong, serving):
    assert prefilled(serving, "fine")["exact"] is True
    assert not wrong()
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(messages, "encode_counts", fail)
        assert "counting failed" in prefilled(serving, "a")["unavailable"]
    assert "counting failed" in prefilled(serving, "b")["unavailable"]


PULLED = {"do_remote_prefill": True, PULL_BEFORE_KEY: 1e12}


def decoded(at, name):
    """Serve a request whose prompt of four tokens was pulled, for three tokens; return its records."""
    asked = at.add(name, 4, [1, 2], kv=PULLED)
    at.half.pulls.allocated(asked)
    for position in (3, 4, 5):
        at.step((name, position, 1))
    at.end(asked, 3)
    at.step()
    at.blocks["last"] = [5]
    at.step(("last", 0, 1))
    stats = at.half.stats()
    return {} if stats is None else stats.data["records"]


def test_a_report_whose_counts_do_not_arrive_says_so_to_the_other_process(wrong, decoding, monkeypatch):
    assert decoded(decoding, "a") == {"exact": 1}
    with monkeypatch.context() as broken:
        broken.setattr(StepReport, "counts", fail)
        assert decoded(decoding, "b").get("exact", 0) == 0
    assert decoded(decoding, "c").get("exact", 0) == 0
    assert len([one for one in wrong() if one.exc_info]) == 1, "logged once"


def test_metrics_that_fail_are_left_out(caplog):
    caplog.set_level(logging.WARNING, "vllm.eldr")
    metrics.EnginePromMetrics.__new__(metrics.EnginePromMetrics).observe({"active": []})
    assert metrics.EngineStats().aggregate(SimpleNamespace(data={})).is_empty()
    assert "left out of the metrics: AttributeError" in caplog.text
    assert "left out of the metrics: KeyError('active')" in caplog.text


def test_pulls_keep_their_deadlines_when_nothing_is_counted(wrong, decoding):
    spoil(decoding.half, "_tracker", "step")
    decoding.half.pulls.allocated(decoding.add("a", 4, kv=PULLED))
    assert decoding.half.orders(output()).pulls == {"a": 1e12}


def test_of_requests_that_come_after_counting_has_stopped_nothing_is_kept(wrong, decoding):
    half = decoding.half
    half._counting.stop("no memory")
    for number in range(20):
        decoded(decoding, f"r{number}")
        assert len(half._tracker) <= 1, "the one that goes on"
    kept = half._ended, half._empty, half.pulls._deadlines, half.pulls._pulling
    assert not any(kept)


def test_requests_without_counts_are_told_once(wrong, decoding):
    half = decoding.half
    half._counting.stop("no memory")
    streamed, never = request("a", 4, resumable=True, generated=2), request("b", 4)
    for one in (streamed, never):
        half.add(one)
        half.end(one)
    assert half.stats().data["records"] == {"unavailable": 1}


def test_what_is_no_fault_is_passed_on():
    counting = Counting("activations")
    with pytest.raises(KeyboardInterrupt), counting:
        raise KeyboardInterrupt
    assert not counting.stopped

"""The short form of the soak (``make soak``), and what its judge calls a fault."""

import json
import random

import pytest

from eldr.sim import text
from tests.support.soak.asks import Ask
from tests.support.soak.flat import MEBI, Sample, growth
from tests.support.soak.judge import GRACE, Record, Window, judge
from tests.support.soak.plan import disturbances
from tests.support.soak.reader import Answer, Reader
from tests.support.soak.run import Round, run
from tests.support.soak.table import table

ASK = Ask("a", prompts=("x",), tokens=3)
STREAM = Ask("s", prompts=("x",), tokens=3, stream=True)
PIECES = [text.token(text.fingerprint("x"), i) for i in range(3)]
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {}}\n\n'


SHORT_SEED, SHORT_SECONDS = 1379, 19.0
"""A seed whose short plan holds every kind of disturbance."""


def soaked(folder, seed, seconds):
    report = run(Round(folder=folder, seed=seed, seconds=seconds))
    shown = "\n\n".join(str(fault) for fault in report.faults)
    assert not report.faults, f"logs in {folder}\n\n{shown}\n\n{table(report)}"


@pytest.mark.process
@pytest.mark.timeout(600)
def test_soak(tmp_path):
    """Everything at once, each kind once: no wrong text, no lost request, no silent cut, nothing left behind."""
    soaked(tmp_path, SHORT_SEED, SHORT_SECONDS)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_minute_of_soak(tmp_path):
    """The same, whatever the order, and long enough for memory that grows to show."""
    soaked(tmp_path, random.SystemRandom().randrange(1 << 32), 60.0)


def event(said):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": said}]}).encode() + b"\n\n"


def streamed(*parts, end="complete", complete=True):
    answer = Answer(200, {"content-type": "text/event-stream"}, list(parts), complete)
    return Record(STREAM, "plain", 100.0, 101.0, end, answer)


def whole(said, *, end="complete", complete=True, tokens=3):
    body = {
        "choices": [{"index": 0, "text": said, "finish_reason": "length"}],
        "usage": {"completion_tokens": tokens},
    }
    return Record(ASK, "plain", 100.0, 101.0, end, Answer(200, {}, [json.dumps(body).encode()], complete))


def failed(status, asked=ASK):
    return Record(asked, "plain", 100.0, 101.0, "complete", Answer(status, {}, [b"{}"], complete=True))


RIGHT = [event(piece) for piece in PIECES]


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (whole("".join(PIECES)), "ok"),
        (streamed(*RIGHT, DONE), "ok"),
        (streamed(RIGHT[0], end="left", complete=False), "left"),
    ],
)
def test_what_is_right(record, outcome):
    assert judge(record, []).outcome == outcome
    assert not judge(record, []).problem


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (whole(" other"), "wrong"),
        (whole("".join(PIECES), tokens=2), "wrong"),
        (whole("".join(PIECES), end="closed", complete=False), "cut"),
        (streamed(RIGHT[0], DONE), "wrong"),
        (streamed(*RIGHT, RIGHT[0], DONE), "wrong"),
        (streamed(*RIGHT), "silent cut"),
        (streamed(RIGHT[0], end="closed", complete=False), "cut"),
        (Record(ASK, "plain", 1.0, 2.0, "closed", None), "lost"),
        (Record(ASK, "plain", 1.0, 2.0, "hung", None), "hung"),
        (failed(500), "status 500"),
    ],
)
def test_what_nothing_excuses(record, outcome):
    disturbed = [Window(kind, 0.0) for kind in ("kill", "stop", "freeze", "alone", "late", "tight")]
    assert judge(record, disturbed).outcome == outcome
    assert judge(record, disturbed).problem


@pytest.mark.parametrize(
    ("record", "kinds"),
    [
        (failed(429), {"kill", "stop", "freeze", "alone", "late", "tight"}),
        (failed(502), {"kill", "stop", "freeze", "alone", "late"}),
        (failed(503), {"kill", "stop", "freeze", "alone", "late"}),
        (streamed(RIGHT[0], ERROR), {"kill"}),
    ],
)
def test_what_a_disturbance_excuses(record, kinds):
    for kind in ("kill", "stop", "freeze", "alone", "late", "tight", "reload"):
        excused = kind in kinds
        assert bool(judge(record, [Window(kind, 100.5)]).problem) != excused
        assert bool(judge(record, [Window(kind, 90.0, 100.5 - GRACE)]).problem) != excused
        assert judge(record, [Window(kind, 101.5)]).problem, "it came later"
        assert judge(record, [Window(kind, 90.0, 99.0 - GRACE)]).problem, "it was long over"


def test_a_router_that_stands_still_excuses_its_own_answers_only():
    window = Window("alone", 100.5, ports=(2,))
    for port, excused in ((1, False), (2, True)):
        record = failed(502)
        record.port = port
        assert bool(judge(record, [window]).problem) != excused


def test_the_short_plan_holds_every_kind():
    rng = random.Random(f"{SHORT_SEED} plan")  # as a round draws it
    drawn = disturbances(rng, SHORT_SECONDS, ["p0", "p1"], ["d0", "d1", "d2", "d3"])
    assert {d.kind for d in drawn} == {"kill", "stop", "freeze", "alone", "late"}


def test_growth_is_told_from_noise():
    def samples(kept):
        return [Sample(float(s), 50 * MEBI + int(kept * s) + (s % 7) * MEBI, 10) for s in range(100)]

    assert not growth(samples(0), 100.0).problem
    assert growth(samples(MEBI), 100.0).problem


def test_answers_are_read_however_they_are_cut():
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nc\r\n"
    )
    for size in (1, 7, len(raw)):
        reader = Reader()
        for start in range(0, len(raw), size):
            reader.feed(raw[start : start + size])
        assert [(a.body, a.complete) for a in reader.answers] == [(b"ab", True), (b"c", False)]
        assert reader.interim == 1

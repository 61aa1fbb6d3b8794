"""The clock was ahead, and is set back: nothing waits until the time comes that was written."""

from datetime import timedelta

import pytest

from eldr.contract import SIMILARITY_BINS
from eldr_operator.clock import SteadyClock
from eldr_operator.drift.counts import Counts, Traffic
from eldr_operator.drift.decide import decide
from eldr_operator.drift.observation import Observation
from eldr_operator.drift.spec import DriftSpec
from eldr_operator.drift.state import Drift, Fits, Promise, Protection, State
from eldr_operator.drift.windows import Span, Window, advance
from eldr_operator.fits.runs import Runs
from eldr_operator.locality.memory import Memory, Refit
from eldr_operator.locality.routing import Table
from tests.unit.operator.builders import NOW, make_fit, make_set

YEAR = timedelta(days=365)
EVEN = (0,) * (SIMILARITY_BINS - 1)


def counts(requests):
    return Counts((*EVEN, requests), (requests, 0), requests, requests)


def test_times_that_lie_ahead_are_taken_as_now():
    ahead, earlier = NOW + YEAR, NOW - timedelta(hours=1)
    drift = State(
        digest="d", seen=ahead, drift=Drift(phase="Detected", since=ahead, changed=earlier, began=ahead),
        promise=Promise(lost_since=ahead), protection=Protection(since=ahead),
        fits=Fits(started=(earlier, ahead), finished=ahead),
    )  # fmt: skip
    table = Table(epoch=1, active=make_set("f"), activated_at=ahead, staged_at=ahead)
    found = Memory(table=table, drift=drift).not_after(NOW)
    assert (found.table.activated_at, found.table.staged_at) == (NOW, NOW)
    assert (found.drift.seen, found.drift.drift.since, found.drift.drift.changed) == (NOW, NOW, earlier)
    assert (found.drift.drift.began, found.drift.promise.lost_since) == (NOW, NOW)
    assert (found.drift.protection.since, found.drift.fits) == (
        NOW,
        Fits(started=(earlier, NOW), finished=NOW),
    )
    assert found.not_after(NOW + YEAR) == found


def test_what_is_to_come_stays_ahead():
    """The next minute of a schedule lies ahead by its nature: a fit must not begin in each pass."""
    refit = Refit(
        schedule="0 3 * * * UTC", last_schedule_time=NOW, next_schedule_time=NOW + timedelta(hours=15)
    )
    assert Memory(refit=refit).not_after(NOW).refit == refit


def test_windows_are_judged_again_at_once():
    memory = Memory(drift=State(digest="d", seen=NOW + YEAR)).not_after(NOW)
    later = NOW + timedelta(minutes=1)
    window = Window("d", (Span(NOW, later, counts(500)),))
    state, _ = decide(memory.drift, DriftSpec(), Observation(digest="d", window=window), later)
    assert state.seen == later


def test_a_window_begins_anew_where_the_clock_is_set_back():
    def look(gathering, requests, at):
        told = [Traffic("r", 1, "d", counts(requests))]
        return advance(gathering, "d", 2, told, at, spec=DriftSpec(window_requests=100))

    ahead = look(look(None, 0, NOW + YEAR), 150, NOW + YEAR + timedelta(minutes=2))
    assert ahead.window is not None
    gathering = look(ahead, 200, NOW)
    assert gathering.window is None, "it would be judged again and again"
    gathering = look(gathering, 400, NOW + timedelta(minutes=2))
    assert gathering.window.latest.until == NOW + timedelta(minutes=2)


class Recorder:
    def __init__(self):
        self.written = []

    async def fit(self, fit, status, now):
        self.written.append((fit.name, status["finishedAt"]))


@pytest.mark.parametrize(
    ("finished", "written"), [("2027-11-21T10:00:00Z", True), ("2026-11-21T12:00:30Z", False)]
)
async def test_a_result_that_lies_ahead_is_dated_back(finished, written):
    recorder = Recorder()
    fit = make_fit("f", finished=finished)
    body = fit.model_dump(mode="json", by_alias=True)
    (found,) = await Runs(None, None, recorder, None, "").readable([body], NOW)
    assert (found.finished_at == found.metadata.creation_timestamp) == written
    assert recorder.written == ([("f", "2026-11-21T09:00:00Z")] if written else [])


def test_a_clock_that_jumps_is_followed_once_it_stays_there():
    ahead, seconds = [timedelta(0)], [0.0]
    steady = SteadyClock(lambda: NOW + timedelta(seconds=seconds[0]) + ahead[0], lambda: seconds[0])

    def off() -> timedelta:
        return steady() - (NOW + timedelta(seconds=seconds[0]))

    assert off() == timedelta(0)
    for jump in (timedelta(hours=1), -timedelta(hours=1)):
        ahead[0] = jump
        for _ in range(3):
            seconds[0] += 60
            assert off() == timedelta(0)
        ahead[0] = timedelta(0)
        seconds[0] += 60
        assert off() == timedelta(0)
    ahead[0] = timedelta(hours=1)
    seen = []
    for _ in range(7):
        seconds[0] += 60
        seen.append(off())
    assert seen == [timedelta(0)] * 5 + [timedelta(hours=1)] * 2
    for _ in range(10):  # corrected bit by bit
        seconds[0] += 60
        ahead[0] -= timedelta(seconds=4)
        assert off() == ahead[0]

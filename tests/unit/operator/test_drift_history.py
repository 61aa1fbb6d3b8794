"""The drift score over the last day: the highest of each half hour, bounded."""

from datetime import UTC, datetime, timedelta

import pytest

from eldr_operator.drift.state import Shown, State
from eldr_operator.locality import drift_history
from eldr_operator.locality.drift_history import HALF_HOUR, KEPT

EIGHT = datetime(2026, 11, 21, 8, tzinfo=UTC)


def judged(at, score):
    return State(seen=at, shown=Shown(value=score, similarity=0.1, clusters=0.1, requests=500))


def day_of(*scores):
    """Advance through windows: (minutes after eight, score)."""
    day, before = {}, State()
    for minutes, score in scores:
        after = judged(EIGHT + timedelta(minutes=minutes), score)
        day, before = drift_history.advance(day, before, after), after
    return day


def test_the_highest_of_a_half_hour_is_kept():
    day = day_of((1, 0.2), (5, 0.714), (29.99, 0.3), (30, 0.1), (59, 0.05), (125, 1.5))
    assert day == {EIGHT: 0.71, EIGHT + HALF_HOUR: 0.1, EIGHT + 4 * HALF_HOUR: 1.5}


def test_a_window_counts_once_and_what_was_not_judged_does_not():
    before = judged(EIGHT, 0.2)
    day = drift_history.advance({}, State(), before)
    assert drift_history.advance(day, before, before) is day
    assert drift_history.advance(day, before, judged(EIGHT, 0.9)) is day, "the same window"
    assert drift_history.advance(day, before, State(seen=EIGHT + HALF_HOUR)) is day, (
        "a window without a score"
    )
    assert drift_history.advance(day, before, State()) is day, "another set is active"


def test_a_day_is_kept_and_no_more():
    day = day_of(*((30 * n, n / 100) for n in range(3 * KEPT)))
    assert len(day) == KEPT
    assert max(day.items()) == (EIGHT + (3 * KEPT - 1) * HALF_HOUR, 1.43)
    later = day_of((0, 0.5), (30, 0.6), (24 * 60, 0.7))
    assert [*later.values()] == [0.6, 0.7], "a day of silence does not push entries out by number"


def test_a_clock_that_was_set_back_leaves_no_future_behind():
    assert day_of((600, 0.5), (0, 0.2)) == {EIGHT: 0.2}


def test_there_and_back():
    day = day_of((1, 0.2), (40, 1.25), (130, 0.3))
    told = drift_history.dump(day)
    assert told == {"since": "2026-11-21T08:00:00Z", "scores": "0.20 1.25 - - 0.30"}
    assert drift_history.load(told) == day
    assert drift_history.load(drift_history.dump({})) == {}


def test_a_full_day_fits_into_its_field():
    told = drift_history.dump(day_of(*((30 * n, 12345.678) for n in range(KEPT))))
    assert len(told["scores"].split()) == KEPT
    assert len(told["scores"]) <= 1024


@pytest.mark.parametrize(
    "damage",
    [
        *(None, 3, "no", [3], {}, {"since": "x", "scores": "1"}, {"since": None, "scores": "1"}),
        *({"since": "2026-11-21T08:30:00Z", "scores": told} for told in (None, 3, "nan", "1 x")),
    ],
)
def test_nothing_rests_on_a_damaged_one(damage):
    assert drift_history.load(damage) == {}

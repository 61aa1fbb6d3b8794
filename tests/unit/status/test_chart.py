"""The drift score as a chart."""

from datetime import UTC, datetime, timedelta

import pytest

from eldr.status.chart import COLUMNS, draw
from eldr.status.overview import HalfHour

NOW = datetime(2026, 11, 22, 7, 10, tzinfo=UTC)
LAST = datetime(2026, 11, 22, 7, 0, tzinfo=UTC)


def bars(*scores, plain=True, **more):
    """Return the rows; the scores are of the last half hours, None: no requests."""
    first = LAST - (len(scores) - 1) * timedelta(minutes=30)
    day = [HalfHour(first + n * timedelta(minutes=30), s) for n, s in enumerate(scores) if s is not None]
    return [line[6:].ljust(COLUMNS)[:COLUMNS] for line in draw(day, NOW, plain=plain, **more)]


@pytest.mark.parametrize(
    ("score", "column"),
    [
        (None, "  -  "),
        (0.0, "  - ."),
        (0.01, "  - ."),
        (0.5, "  - |"),
        (0.75, "  -:|"),
        (1.0, "  -||"),
        (1.01, " .|||"),
        (1.6, ".||||"),
        (99.0, "|||||"),
    ],
)
def test_a_bar_crosses_the_line_only_where_it_raises(score, column):
    assert "".join(row[-1] for row in bars(score)[:5]) == column


def test_each_half_hour_has_its_column():
    rows = bars(1.5, None, 0.5)
    assert [row[-3:] for row in rows[:5]] == ["   ", "|  ", "|--", "|  ", "| |"]
    assert [row[:-3].strip(" -") for row in rows[:5]] == [""] * 5


def test_what_is_older_or_ahead_is_left_out():
    old, ahead = HalfHour(LAST - timedelta(days=1), 2.0), HalfHour(LAST + timedelta(minutes=30), 2.0)
    assert draw([old, ahead], NOW, [old.time, ahead.time]) == draw([], NOW)


def test_activations_and_times_stand_below():
    rows = bars(0.5, activations=[NOW - timedelta(minutes=30)])
    assert rows[-1].index("^") == COLUMNS - 2
    assert rows[-2].split() == ["07:30", "13:30", "19:30", "01:30"]


def test_blocks_are_finer():
    assert [row[-1] for row in bars(0.75, plain=False)[:5]] == [" ", " ", "-", "▄", "█"]

"""The drift score as a chart."""

from datetime import UTC, datetime, timedelta

from eldr.status.chart import draw
from eldr.status.overview import HalfHour

NOW = datetime(2026, 11, 22, 7, 10, tzinfo=UTC)
LAST = datetime(2026, 11, 22, 7, 0, tzinfo=UTC)


def test_what_is_older_or_ahead_is_left_out():
    old, ahead = HalfHour(LAST - timedelta(days=1), 2.0), HalfHour(LAST + timedelta(minutes=30), 2.0)
    assert draw([old, ahead], NOW, [old.time, ahead.time]) == draw([], NOW)

"""When schedules come, also in the hours that a change of the clocks repeats or leaves out."""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from eldr_operator import cron

BERLIN = "Europe/Berlin"
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)  # from 03:00 back to 02:00, at 01:00 UTC
SPRING = datetime(2026, 3, 29, tzinfo=UTC)  # from 02:00 on to 03:00, at 01:00 UTC
SCHEDULES = ["30 2 * * *", "0 3 * * *", "*/20 * * * *", "15 */2 * * *", "30 2,4 * * 0", "59 1 * * *"]


def times(schedule, day):
    """Return what follows one upon the other from a day before to a day after."""
    found = [cron.following(schedule, BERLIN, day - timedelta(days=8))]
    while found[-1] < day + timedelta(days=1):
        found.append(cron.following(schedule, BERLIN, found[-1]))
    return [came.astimezone(UTC) for came in found]


@pytest.mark.parametrize("day", [AUTUMN, SPRING])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_look_agrees_on_what_came_and_what_comes(schedule, day):
    came = times(schedule, day)
    assert all(one < other for one, other in pairwise(came))
    for minute in range(-60, 5 * 60, 7):
        now = day + timedelta(minutes=minute, seconds=20)
        assert cron.following(schedule, BERLIN, now).astimezone(UTC) == came[bisect_right(came, now)]
        assert cron.latest(schedule, BERLIN, now).astimezone(UTC) == came[bisect_left(came, now) - 1]
    for each in came[1:-1]:
        assert cron.latest(schedule, BERLIN, each).astimezone(UTC) == each


@pytest.mark.parametrize("day", [AUTUMN, SPRING])
@pytest.mark.parametrize("schedule", ["30 2 * * *", "0 3 * * *", "59 1 * * *"])
def test_a_time_of_day_comes_once_a_day(schedule, day):
    came = [at for at in times(schedule, day) if day - timedelta(hours=2) <= at < day + timedelta(hours=22)]
    assert len(came) == 1


def test_a_step_comes_in_both_hours_of_a_repeated_one():
    came = [at for at in times("*/20 * * * *", AUTUMN) if AUTUMN <= at < AUTUMN + timedelta(hours=2)]
    assert len(came) == 6

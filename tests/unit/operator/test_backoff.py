"""When what failed is tried again."""

import pytest

from eldr_operator.backoff import Backoff, Intervals

OWNER = ("n", "x")


@pytest.fixture
def now():
    return [0.0]


def intervals(made, now, count, message="no"):
    """Fail as soon as the next attempt is due; return the intervals."""
    found = []
    for _ in range(count):
        made.failed(OWNER, "a", message)
        waiting = made.waiting(OWNER, "a")
        found.append(waiting.seconds if waiting else 0.0)
        now[0] += found[-1]
    return found


def test_intervals_double_up_to_the_longest(now):
    made = Backoff(lambda: now[0], Intervals(5.0, 60.0))
    assert intervals(made, now, 6) == [5, 10, 20, 40, 60, 60]
    assert made.waiting(OWNER, "a") is None
    assert made.waiting(OWNER, "b") is None


def test_the_first_ones_can_be_free(now):
    assert intervals(Backoff(lambda: now[0], Intervals(5.0, 60.0, free=2)), now, 4) == [0, 0, 5, 10]


def test_a_message_that_differs_each_time_is_the_same_failure(now):
    """As that of a webhook with a time in it: it would be tried every five seconds for ever."""
    made, seen = Backoff(lambda: now[0], Intervals(5.0, 60.0)), []
    for attempt in range(4):
        made.failed(OWNER, "a", f"refused at {attempt}")
        waiting = made.waiting(OWNER, "a")
        seen.append((waiting.message, waiting.seconds))
        now[0] += waiting.seconds
    assert seen == [(f"refused at {n}", seconds) for n, seconds in enumerate([5, 10, 20, 40])]


@pytest.mark.parametrize(
    "change",
    [
        lambda made, _: made.succeeded(OWNER, "a"),
        lambda made, _: made.forget(OWNER),
        lambda _, now: now.__setitem__(0, now[0] + 61.0),
    ],
    ids=["success", "the deployment went", "a long time"],
)
def test_what_begins_anew(now, change):
    made = Backoff(lambda: now[0], Intervals(5.0, 60.0))
    assert intervals(made, now, 3) == [5, 10, 20]
    change(made, now)
    assert intervals(made, now, 1) == [5]

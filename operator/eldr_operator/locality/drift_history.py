"""The drift score over the last day, for people: the highest of each half hour. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from eldr_operator import clock
from eldr_operator.drift.state import State

HALF_HOUR = timedelta(minutes=30)
KEPT = 48
_NONE = "-"
_HIGHEST = 1e6
"""A score beyond, or NaN, is damage."""


class HalfHour(NamedTuple):
    """What was highest in it.

    Attributes
    ----------
    time : datetime
        When it began, UTC.
    score : float
        1 and above raises.
    """

    time: datetime
    score: float


Day = tuple[HalfHour, ...]


def advance(day: Day, before: State, after: State) -> Day:
    """Take the score of a window that was judged just now into the day; without such a window nothing changes.

    Parameters
    ----------
    day : tuple of HalfHour
        The oldest first.
    before, after : State
        Around the judgement.
    """
    if after.shown is None or after.seen is None or after.seen == before.seen:
        return day
    since = after.seen - timedelta(
        minutes=after.seen.minute % 30, seconds=after.seen.second, microseconds=after.seen.microsecond
    )
    highest = max((one.score for one in day if one.time == since), default=0.0)
    oldest = since - (KEPT - 1) * HALF_HOUR
    # one that lies ahead was noted before the clock was set back
    kept = (one for one in day if oldest <= one.time < since)
    return (*kept, HalfHour(since, min(_HIGHEST, max(highest, round(after.shown.value, 2)))))


def dump(day: Day) -> dict[str, str]:
    """Return it as ``status.locality.driftDay`` shows it: on one line, or `kubectl describe` would show little else."""
    if not day:
        return {}
    by_time = {one.time: f"{one.score:.2f}" for one in day}
    number = (day[-1].time - day[0].time) // HALF_HOUR + 1
    scores = (by_time.get(day[0].time + n * HALF_HOUR, _NONE) for n in range(number))
    return {"since": clock.stamp(day[0].time), "scores": " ".join(scores)}


def load(told: object) -> Day:
    """Return what :func:`dump` made; nothing where it is damaged, because nothing rests on it."""
    try:
        since = clock.usable(datetime.fromisoformat(told["since"]))  # type: ignore[index]
        scores = enumerate(told["scores"].split()[:KEPT])  # type: ignore[index]
        found = [HalfHour(since + n * HALF_HOUR, float(score)) for n, score in scores if score != _NONE]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return ()
    return tuple(one for one in found if 0 <= one.score <= _HIGHEST)

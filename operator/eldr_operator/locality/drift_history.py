"""The drift score over the last day, for people: the highest of each half hour. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from eldr_operator import clock
from eldr_operator.drift.state import State

HALF_HOUR = timedelta(minutes=30)
KEPT = 48
_NONE = "-"
_HIGHEST = 1e6
"""A score beyond, or NaN, is damage."""

Day = dict[datetime, float]
"""The highest score of each half hour that had one, by its beginning."""


def advance(day: Day, before: State, after: State) -> Day:
    """Take the score of a window into the day that was judged between two states; without such a window nothing changes."""
    if after.shown is None or after.seen is None or after.seen == before.seen:
        return day
    since = after.seen.replace(minute=after.seen.minute // 30 * 30, second=0, microsecond=0)
    oldest = since - (KEPT - 1) * HALF_HOUR
    # one that lies ahead was noted before the clock was set back
    kept = {time: score for time, score in day.items() if oldest <= time < since}
    return kept | {since: min(_HIGHEST, max(day.get(since, 0.0), round(after.shown.value, 2)))}


def dump(day: Day) -> dict[str, str]:
    """Return it as ``status.locality.driftDay`` shows it: on one line, or `kubectl describe` would show little else."""
    if not day:
        return {}
    first, number = min(day), (max(day) - min(day)) // HALF_HOUR + 1
    times = (first + n * HALF_HOUR for n in range(number))
    scores = " ".join(f"{day[time]:.2f}" if time in day else _NONE for time in times)
    return {"since": clock.stamp(first), "scores": scores}


def load(value: object) -> Day:
    """Return what :func:`dump` made; nothing where it is damaged, because nothing rests on it."""
    try:
        since = clock.usable(datetime.fromisoformat(value["since"]))  # type: ignore[index]
        scores = enumerate(value["scores"].split()[:KEPT])  # type: ignore[index]
        day = {since + n * HALF_HOUR: float(score) for n, score in scores if score != _NONE}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return {}
    return {time: score for time, score in day.items() if 0 <= score <= _HIGHEST}

"""The drift score over a day as a few lines of text, one column a half hour. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import ceil, floor
from typing import Final

from eldr.status.overview import HalfHour

COLUMNS: Final = 48
HALF_HOUR: Final = timedelta(minutes=30)
_ROW: Final = 0.5
"""Of the score."""
_ROWS: Final = 2
"""Above 1, and below."""
_LABELLED: Final = 12
"""Every so many columns have their time below."""
_EDGE: Final = 4
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_PLAIN: Final = " .:|"


def draw(
    day: Iterable[HalfHour], now: datetime, activations: Iterable[datetime] = (), *, plain: bool = False
) -> list[str]:
    """Return the lines, from the top.

    Parameters
    ----------
    day : iterable of HalfHour
        What is older than a day, or lies ahead, is left out.
    now : datetime
        In the last column.
    activations : iterable of datetime
        When another set began to serve; marked below.
    plain : bool
        ASCII only.
    """
    scores: list[float | None] = [None] * COLUMNS
    for one in day:
        at = _column(one.time, now)
        if 0 <= at < COLUMNS:
            scores[at] = max(scores[at] or 0.0, one.score)
    blocks = _PLAIN if plain else _BLOCKS
    above = [_row(scores, 1.0 + _ROW * n, blocks) for n in reversed(range(_ROWS))]
    below = [_row(scores, _ROW * n, blocks) for n in reversed(range(_ROWS))]
    rule = "".join(blocks[-1] if score is not None and score > 1.0 else "-" for score in scores)
    marks = [" "] * COLUMNS
    for time in activations:
        if 0 <= (at := _column(time, now)) < COLUMNS:
            marks[at] = "^"
    top = f"{1 + _ROWS * _ROW:g}+"
    drawn = [
        *(_line(label, "|", row) for label, row in zip((top, *[""] * (_ROWS - 1)), above, strict=True)),
        _line("1", "+", f"{rule} from here on it is drift"),
        *(_line(label, "|", row) for label, row in zip((*[""] * (_ROWS - 1), "0"), below, strict=True)),
        _line("", " ", _times(now)),
    ]
    if "^" in marks:
        drawn.append(_line("", " ", f"{''.join(marks)} ^ another set serves"))
    return drawn


def _column(time: datetime, now: datetime) -> int:
    return COLUMNS - 1 - (_number(now) - _number(time))


def _number(time: datetime) -> int:
    return floor(time.timestamp() / HALF_HOUR.total_seconds())


def _row(scores: Sequence[float | None], bottom: float, blocks: str) -> str:
    def block(score: float | None) -> str:
        if score is None:
            return " "
        filled = min(max((score - bottom) / _ROW, 0.0), 1.0) * (len(blocks) - 1)
        # a half hour with requests never looks like one without
        return blocks[max(ceil(filled - 1e-9), 1 if bottom == 0.0 else 0)]

    return "".join(map(block, scores))


def _times(now: datetime) -> str:
    last = datetime.fromtimestamp(_number(now) * HALF_HOUR.total_seconds(), now.tzinfo)
    shown = (last - (COLUMNS - 1 - at) * HALF_HOUR for at in range(0, COLUMNS, _LABELLED))
    return "".join(f"{time:%H:%M}".ljust(_LABELLED) for time in shown) + "UTC"


def _line(label: str, edge: str, rest: str) -> str:
    return f"{label:>{_EDGE}} {edge}{rest}".rstrip()

"""What others wrote, made safe where it is read: a text, a count, a number, or nothing. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

MOST_COUNT = 1 << 53
"""Beyond, a count is a lie; below, it is exact in every JSON reader."""


def load(text: str | bytes) -> Any:
    """Read JSON; ValueError if it is none, or nested deeper than anybody means."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON: nested too deep") from None


def text(value: object, most: int = 500) -> str:
    """Return a text that can be written anywhere, on one line; empty where it is none."""
    if not isinstance(value, str):
        return ""
    # line ends are usual in messages of errors; all else that cannot be printed is shown as such
    line = "".join(
        one if one.isprintable() else " " if one.isspace() else "?" for one in value[: most + 1]
    ).strip()
    return line if len(line) <= most else line[: most - 3] + "..."


def name(value: object, most: int = 253) -> str:
    """Return an identifier, a digest or a name; empty where it is none: a part of one names something else."""
    known = isinstance(value, str) and 0 < len(value) <= most and value.isascii() and value.isprintable()
    return str(value) if known and " " not in str(value) else ""


def count(value: object, most: int = MOST_COUNT) -> int | None:
    """Return a whole number from 0 on, also one that JSON holds as 5.0; None where it is none."""
    parsed = number(value, 0, most)
    return None if parsed is None or not parsed.is_integer() else int(parsed)


def number(value: object, low: float, high: float) -> float | None:
    """Return a finite number in a range; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # compared first: a whole number may be too large for a float, and NaN is in no range
    return float(value) if low <= value <= high and math.isfinite(value) else None

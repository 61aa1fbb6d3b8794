"""Values of a JSON object whoever wrote it: what has another type than it should counts as absent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def inside(value: object, *path: str) -> Object:
    """Return the object at a path, an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects(fields: Object, key: str) -> Iterator[Object]:
    """Yield the objects of a list."""
    listed = fields.get(key)
    yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, dict))


def text(fields: Object, key: str) -> str | None:
    """Return a text; None where it is empty."""
    value = fields.get(key)
    return value if isinstance(value, str) and value else None


def integer(fields: Object, key: str) -> int | None:
    """Return a whole number."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def decimal(fields: Object, key: str) -> float | None:
    """Return a number that is written as text, as the API has them."""
    value = fields.get(key)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def moment(fields: Object, key: str) -> datetime | None:
    """Return a time, in UTC; of a year that one can reckon with."""
    try:
        time = datetime.fromisoformat(fields[key]).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return time if 1970 <= time.year < 9000 else None

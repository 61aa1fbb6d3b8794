"""Objects that are nested deeper than anybody means."""

from __future__ import annotations

from typing import Any


def nested(levels: int) -> dict[str, Any]:
    """Return objects in one another."""
    made: dict[str, Any] = {}
    for _ in range(levels - 1):
        made = {"a": made}
    return made

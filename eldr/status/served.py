"""``status.history`` -> when each fit's set served, and why that ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import zip_longest
from typing import Final, NamedTuple

from eldr.status.fields import Object, integer, moment, text
from eldr.status.overview import Served

Spans = dict[str, list[Served]]
"""By the name of the fit, the oldest first."""

NO_SET: Final = "none"
"""In place of a fit where no set serves from then on."""
_PROTECTIVE: Final = "Protective"
"""Why a set is out of service from then on, though it stays the active one."""


class _Entry(NamedTuple):
    time: datetime
    fit: str
    epoch: int | None
    reason: str | None


def spans(history: Iterable[Object]) -> Spans:
    """Return when each set served; each serves until the next activation, or until it goes out of service."""
    entries = sorted(
        (
            _Entry(time, fit, integer(one, "epoch"), text(one, "reason"))
            for one in history
            if (time := moment(one, "time")) is not None and (fit := text(one, "fit")) is not None
        ),
        key=lambda entry: (entry.epoch or 0, entry.time),
    )
    by_fit: Spans = {}
    for entry, after in zip_longest(entries, entries[1:]):
        if entry.fit == NO_SET or entry.reason == _PROTECTIVE:
            continue
        until, ended = (None, None) if after is None else (after.time, _end(after))
        by_fit.setdefault(entry.fit, []).append(Served(entry.epoch, entry.time, until, entry.reason, ended))
    return by_fit


def _end(after: _Entry) -> str:
    if after.fit == NO_SET:
        why = {"RolledBack": "it saved less than predicted", "ModelChanged": "the model changed"}
        return (
            f"no set served from then on: {why.get(after.reason or '', after.reason or 'no reason is known')}"
        )
    match after.reason:
        case "RolledBack":
            return f"saved less than predicted, or its traffic was over: rolled back to {after.fit}"
        case "Protective":
            return "it did worse than placement by load, which was in effect from then on"
        case "Pinned":
            return f"{after.fit} was pinned"
        case "Accepted" | None:
            return f"{after.fit} followed"
        case "AckTimeout":
            return f"{after.fit} followed, before all routers had loaded it"
        case reason:
            return f"{after.fit} followed ({reason})"

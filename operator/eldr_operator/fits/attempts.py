"""Fits that are made because a set is needed: base, base-2, base-3, ... with growing pauses while none helps. Pure.

How many there were stands on each of them, because those before it may have been deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from eldr import contract
from eldr_operator.locality.routing import Table
from eldr_operator.models import EldrFit

FIRST_PAUSE = timedelta(minutes=5)
_LONGEST_PAUSE = timedelta(hours=6)


class Attempt(NamedTuple):
    """The number in the name of a fit to make, and how many there are for the same need, this one included."""

    number: int
    tries: int


def following(base: str, fits: Sequence[EldrFit], since: datetime | None, now: datetime) -> Attempt | None:
    """Return the next attempt; None while one waits for it.

    What was tried before the active set was activated was tried in another situation: it counts for the name alone.

    Parameters
    ----------
    base : str
        Name of the first one.
    fits : sequence of EldrFit
        All of the deployment; finished.
    since : datetime or None
        See :func:`situation_since`.
    """
    tried = [(index, fit) for fit in fits if (index := number(fit.name, base))]
    failed = [fit for _, fit in tried if since is None or fit.finished_at > since]
    count = max([len(failed), *map(_count, failed)])
    if failed:
        pause = min(FIRST_PAUSE * 2 ** min(count - 1, 10), _LONGEST_PAUSE)
        if now - max(fit.finished_at for fit in failed) < pause:
            return None
    return Attempt(max((index for index, _ in tried), default=0) + 1, count + 1)


def situation_since(fits: Iterable[EldrFit], table: Table, blocked: Collection[str]) -> datetime | None:
    """Return since when attempts count. A set that was rolled back to none was one more of them that has not helped."""
    if not table.rolled_back_to_none:
        return table.activated_at
    made = ((fit.finished_at, fit.accepted_set) for fit in fits)
    return max((when for when, pointer in made if pointer and pointer.digest not in blocked), default=None)


def latest(name: str, finished: Sequence[EldrFit], since: datetime | None) -> set[str]:
    """Return the last attempt of each kind, by which the next one's pause is known, of a deployment's fits in their order."""
    kinds = re.compile(rf"({re.escape(name)}-(?:bootstrap|repair|scale-k\d+))(?:-\d+)?")
    newest = {}
    for fit in finished:
        if (match := kinds.fullmatch(fit.name)) and (since is None or fit.finished_at > since):
            newest[match[1]] = fit.name
    return set(newest.values())


def number(name: str, base: str) -> int:
    """Return 1 for base, n for base-n, and 0 for another name.

    Examples
    --------
    >>> number("x-repair-3", "x-repair"), number("x-repair", "x-repair"), number("x-repaired", "x-repair")
    (3, 1, 0)
    """
    match = re.fullmatch(rf"{re.escape(base)}(?:-([1-9]\d*))?", name)
    return int(match[1] or 1) if match else 0


def _count(fit: EldrFit) -> int:
    """Return what stands on a fit; 1 where that is no count."""
    annotation = fit.metadata.annotations.get(contract.ANNOTATION_ATTEMPT)
    return (
        int(annotation) if isinstance(annotation, str) and re.fullmatch(r"[1-9][0-9]{0,5}", annotation) else 1
    )

"""What is kept of a baseline that a fit has stored beside its set: what is read of it, and no more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eldr_operator.drift.counts import Counts, read_baseline

MOST_CLUSTERS = 4096
"""As many as a fit makes."""
_MOST_REMEMBERED = 8


def stored(value: Any, k: int | None = None) -> dict[str, Any]:
    """Return a baseline as it is remembered; its size is bounded, whatever its report holds.

    Parameters
    ----------
    value : Any
        As a report has it, or as it was remembered.
    k : int, optional
        Clusters of the set; None where they are not known.

    Raises
    ------
    ValueError
        If it cannot be read, or is not of that set; names the field.
    """
    found = read_baseline(value)
    clusters = len(found.counts.clusters)
    if clusters > MOST_CLUSTERS or clusters != (k or clusters):
        wanted = f"at most {MOST_CLUSTERS}" if clusters > MOST_CLUSTERS else str(k)
        raise ValueError(f"baseline.clusters: expected {wanted}, got {clusters}")
    before = found.before
    known = {
        "saving": found.saving,
        "saving_low": found.low,
        "saving_high": found.high,
        "batch": found.batch,
        "before": None if before is None or len(before.clusters) != clusters else _counts(before),
    }
    return _counts(found.counts) | {key: one for key, one in known.items() if one is not None}


def readable(value: object) -> dict[str, Any]:
    """Return what fits stored beside their sets, empty for nothing; what cannot be read is read from their reports again."""
    whole: dict[str, Any] = {}
    for key, one in list(value.items())[-_MOST_REMEMBERED:] if isinstance(value, Mapping) else ():
        try:
            whole[key] = stored(one) if one != {} else {}
        except ValueError:
            continue
    return whole


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "similarity": list(counts.similarity),
        "clusters": list(counts.clusters),
        "requests": counts.requests,
    }

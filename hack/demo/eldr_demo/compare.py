"""How one policy's times compare with another's under the same requests: pairs, and their range under resampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_RESAMPLES = 2000
_BLOCK = 64
"""Requests that run at the same time share a fate: they are drawn in blocks of as many neighbours as are in flight. Still, one short
trace says little of others: these ranges are no confidence intervals (docs/benchmarks/studies.md: how often they would hold
as such)."""
_LEAST = 2 * _BLOCK
_LEVEL = 95.0

Statistic = Callable[[Floats], Floats]
STATISTICS: Mapping[str, Statistic] = {
    "mean": lambda values: values.mean(axis=-1),
    "P50": lambda values: np.percentile(values, 50, axis=-1),
    "P99": lambda values: np.percentile(values, 99, axis=-1),
}


class Change(NamedTuple):
    """A relative change, -0.05 for 5 % less, and the middle 95 % of what resampled requests give."""

    change: float
    low: float
    high: float


def compare(base: Mapping[int, float], other: Mapping[int, float], seed: int = 0) -> dict[str, Change] | None:
    """Return how each of :data:`STATISTICS` changed from ``base`` to ``other``.

    Parameters
    ----------
    base, other : mapping of int to float
        A time by the request's number in the sequence that both got; only those in both count.
    seed : int
        Of the resampling.

    Returns
    -------
    dict of str to Change, or None
        None if too few requests are in both.
    """
    common = sorted(base.keys() & other.keys())
    if len(common) < _LEAST:
        return None
    pairs = np.array([[base[n], other[n]] for n in common]).T
    blocks = -(-len(common) // _BLOCK)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(common) - _BLOCK + 1, (_RESAMPLES, blocks))
    drawn = (starts[..., None] + np.arange(_BLOCK)).reshape(_RESAMPLES, -1)[:, : len(common)]
    changes: dict[str, Change] = {}
    for name, statistic in STATISTICS.items():
        before, after = statistic(pairs)
        resampled = statistic(pairs[1][drawn]) / statistic(pairs[0][drawn]) - 1.0
        low, high = np.percentile(resampled, [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
        changes[name] = Change(float(after / before - 1.0), float(low), float(high))
    return changes

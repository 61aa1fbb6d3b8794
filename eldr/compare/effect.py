"""How one policy's figures differ from the other's, from pairs of neighbouring windows. Pure."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from scipy.stats import t

LEAST: Final = 3
"""Pairs. With fewer, an interval says nothing."""
_LEVEL: Final = 0.95


class Change(NamedTuple):
    """A relative change, -0.08 for 8 % less, its interval, and how many pairs it rests on."""

    change: float
    low: float
    high: float
    pairs: int

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def change(pairs: Sequence[tuple[float, float]]) -> Change | None:
    """Return how the first of each pair differs from the second, with a 95 % interval.

    The pairs are neighbours in time, so load that changes over hours touches both windows of a pair alike; their order is
    random, and either comes first as often, so a trend favours neither. Left is the scatter between pairs, and Student's t of the logarithms of
    the ratios goes by that alone. It assumes nothing of how requests within a window depend on each other, which
    resampling requests would. The logarithm makes the interval the same
    whichever policy is named first. A window's figure is a mean over many requests, so the logarithms are near enough to normal.
    The randomisation test of the same design needs no such assumption, but cannot tell 5 % with fewer than six pairs [1]_.

    Parameters
    ----------
    pairs : sequence of (float, float)
        Figures of the two windows; above 0.

    Returns
    -------
    Change or None
        None with fewer than :data:`LEAST` pairs.

    References
    ----------
    .. [1] Bojinov, Simchi-Levi, Zhao, "Design and Analysis of Switchback Experiments", Management Science 69(7), 2023.
    """
    logs = [math.log(first / second) for first, second in pairs if first > 0 and second > 0]
    if len(logs) < LEAST:
        return None
    mean = statistics.fmean(logs)
    half = _quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Change(math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half), len(logs))


@functools.cache
def _quantile(freedom: int) -> float:
    return float(t.ppf(0.5 + _LEVEL / 2, freedom))

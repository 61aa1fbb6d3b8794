"""Intervals of figures without a formula, from halves of the records.

References
----------
.. [1] P. J. McCarthy, Pseudo-replication: half samples, Review of the International Statistical Institute 37 (1969).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import hadamard
from scipy.special import stdtrit

from eldr.core.pairs import Rows

GROUPS = 8
_BLOCKS = 4 * GROUPS
CONFIDENCE = 0.9
"""Of intervals. Whoever decides by them asks for one end only, and is wrong 5 times of 100."""


class Interval(NamedTuple):
    """A figure, and the ends of its interval."""

    value: float
    low: float
    high: float


def balanced_halves(n: int, rng: np.random.Generator) -> list[tuple[Rows, Rows]]:
    """Split records in halves so that any two groups meet equally often.

    There are ``GROUPS - 1`` splits.

    Parameters
    ----------
    n : int
        Records, oldest first, at least ``GROUPS``. Neighbours stay together where there are many: requests of one client
        come in bursts, and say less than as many requests of different ones.
    rng : numpy.random.Generator

    Returns
    -------
    list of (ndarray of int, ndarray of int)
        Both halves of each split, ascending.

    Raises
    ------
    ValueError
        If there are fewer records than groups.
    """
    if n < GROUPS:
        raise ValueError(f"n: expected at least {GROUPS} records, got {n}")
    blocks = min(n, _BLOCKS)
    group = rng.permutation(np.arange(blocks) % GROUPS)[np.arange(n) * blocks // n]
    first = hadamard(GROUPS)[1:] > 0
    return [(np.flatnonzero(side[group]), np.flatnonzero(~side[group])) for side in first]


def interval(value: float, halves: Sequence[tuple[float, float]]) -> Interval:
    """Return the interval of a figure from its values on both halves.

    Parameters
    ----------
    value : float
        Of all records.
    halves : sequence of (float, float)
        In the order of :func:`balanced_halves`.

    Notes
    -----
    The two halves of a split differ by twice what all records differ from others of their kind, so the variance is the
    mean of a quarter of the squared differences; Student's t with one degree of freedom per split. Noise of the
    computation itself, other on either half, is in the differences as well.
    """
    variance = sum((one - other) ** 2 for one, other in halves) / (4.0 * len(halves))
    half_width = float(stdtrit(len(halves), 0.5 + CONFIDENCE / 2)) * math.sqrt(variance)
    return Interval(value, value - half_width, value + half_width)

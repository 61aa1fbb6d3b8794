"""Spearman's rank correlation of many candidates with one target, the inner loop of the layer choice."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

BINS = 1 << 13
"""Of an estimate: their sums stay in the processor's first caches."""
_SIGMAS = 8.0
_SLOPE = 4.0
_NARROW = 1e-9  # of a range: floats there are no finer than bins would be


def ascending(values: Doubles, positions: Positions) -> tuple[Positions, bool]:
    """Return the order of values, and whether two of them may be equal.

    Parameters
    ----------
    values : ndarray of float64, shape (n,)
        Finite.
    positions : ndarray of int64, shape (n,)
        0..n - 1, which callers keep.

    Returns
    -------
    order : ndarray of int64, shape (n,)
        The order of equal values is any.
    tied : bool
        False only where all values differ.

    Notes
    -----
    Sorts one integer per value that holds the value's leading bits and its position: half the time of an argsort,
    which follows an index at every comparison. Where leading bits are equal, an argsort decides.
    """
    n = len(values)
    bits = n.bit_length()
    largest = max(float(values.max()), -float(values.min()))
    if not 1e-100 < largest < 1e100:  # all zero, or so far off that the scale has no float
        return np.argsort(values), True
    # A power of two, so that only the cast rounds: keys keep the order, or are equal.
    keys = (values * 2.0 ** (62 - bits - math.frexp(largest)[1])).astype(np.int64)
    keys <<= bits
    keys |= positions
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    if (keys[1:] != keys[:-1]).all():
        return order, False
    ordered = values.take(order)
    return (order if (ordered[1:] >= ordered[:-1]).all() else np.argsort(values)), True


def centred_ranks(values: Doubles) -> Doubles:
    """Return average ranks minus their mean, as Spearman's rho wants them."""
    ranks = np.empty(len(values))
    positions = np.arange(len(values))
    order, tied = ascending(values, positions)
    ranks[order] = _ordered_ranks(values.take(order)) if tied else positions
    return ranks - (len(values) - 1) / 2.0


def _ordered_ranks(ordered: Doubles) -> Doubles:
    """Return the ranks of ascending values; equal ones share their mean rank, so their order does not matter."""
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(starts, len(ordered)))
    return np.repeat(starts + (sizes - 1) / 2.0, sizes)


class Estimate(NamedTuple):
    """A rank correlation from counts in bins, and how far from the exact one it may be."""

    rho: float
    error: float


class RankCorrelation:
    """Spearman's rho with one target.

    Ranks are halves of integers: their products and sums are exact up to about 200,000 values, so that rho does not depend on
    the order in which they are summed.

    Parameters
    ----------
    target : ndarray of float64, shape (n,)
    """

    def __init__(self, target: Doubles) -> None:
        n = len(target)
        self._target = centred_ranks(target)
        self._squares = float(self._target @ self._target)
        self._positions = np.arange(n)
        self._untied = self._positions - (n - 1) / 2.0
        self._untied_squares = float(self._untied @ self._untied)

    def __call__(self, values: Doubles) -> float:
        """Return rho of ``values``, shape (n,), with the target; 0 where either is constant."""
        order, tied = ascending(values, self._positions)
        ranks, squares = self._untied, self._untied_squares
        if tied:
            ranks = _ordered_ranks(values.take(order)) - (len(values) - 1) / 2.0
            squares = float(ranks @ ranks)
        scale = np.sqrt(squares * self._squares)
        return float(ranks @ self._target.take(order) / scale) if scale > 0 else 0.0

    def estimate(self, values: Doubles) -> Estimate:
        """Return rho of ``values``, shape (n,), as if those of each of ``BINS`` bins of equal width were tied: no sorting.

        Notes
        -----
        Let w be the share of the ranks' variance that lies within bins, at most. Bins lose the covariance with the target there.
        Its standard error is below ``sqrt(w / n)``, of which eight are allowed; its mean is w times the slope there, of which
        four are. From w = 1/16 on, where outliers leave most values in one bin, these four are more than can be lost at all.
        """
        low, high = float(values.min()), float(values.max())
        if not high - low > _NARROW:
            return Estimate(0.0, math.inf)
        scaled = values - low
        scaled *= (BINS - 1) / (high - low)
        bins = scaled.astype(np.intp)
        sizes = np.bincount(bins, minlength=BINS)
        targets = np.bincount(bins, self._target, BINS)
        ranks = sizes.cumsum() - (sizes + len(values)) / 2.0
        squares = float((ranks * ranks) @ sizes)
        scale = math.sqrt(squares * self._squares)
        within = max(0.0, 1.0 - squares / self._untied_squares)
        error = _SIGMAS * math.sqrt(within / len(values)) + _SLOPE * within
        return Estimate(float(ranks @ targets) / scale if scale > 0 else 0.0, error)

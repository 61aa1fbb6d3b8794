"""Comparison of policies seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import t


class Change(NamedTuple):
    """A relative difference: mean over the seeds, and half the width of its 95 % interval (NaN with one seed)."""

    mean: float
    half_width: float


def change(values: Sequence[float], baseline: Sequence[float]) -> Change:
    """Compare seed by seed.

    Parameters
    ----------
    values, baseline : sequence of float
        One per seed, in the same order.

    Notes
    -----
    Student's t on the relative differences.
    """
    relative = np.asarray(values) / np.asarray(baseline) - 1.0
    return Change(float(relative.mean()), half_width(relative))


def half_width(values: Sequence[float] | npt.NDArray[np.floating]) -> float:
    """Return half the width of the 95 % interval of a mean (Student's t), NaN for a single value."""
    n = len(values)
    if n < 2:
        return math.nan
    return float(t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)

"""Means over seeds with 95 % intervals, in percent of change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr_lab.synthetic.pairs import half_width


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval (Student's t; NaN with one seed)."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Lower end; the mean itself with one seed."""
        return self.mean - (0.0 if math.isnan(self.half) else self.half)

    @property
    def high(self) -> float:
        """Upper end; the mean itself with one seed."""
        return self.mean + (0.0 if math.isnan(self.half) else self.half)

    def __str__(self) -> str:
        return self.text("+.1f", ".1f")

    def text(self, mean: str, half: str) -> str:
        """Return it with these formats."""
        text = format(self.mean + 0.0, mean)
        return text if math.isnan(self.half) else f"{text} ±{format(self.half, half)}"


def changes(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the interval of relative differences, percent; values are paired by seed."""
    return interval([100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)])


def interval(values: Sequence[float]) -> Interval:
    """Return the interval of one value per seed."""
    return Interval(float(np.mean(values)), half_width(values))

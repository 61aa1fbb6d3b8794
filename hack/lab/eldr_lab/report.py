"""Means over seeds with 95 % intervals, and Markdown of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eldr_lab.synthetic.pairs import half_width


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval.

    The interval is Student's t; its half is NaN with one seed.
    """

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
    """Return relative differences of values paired by seed, percent."""
    return interval([100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)])


def interval(values: Sequence[float]) -> Interval:
    """Return the interval of one value per seed."""
    return Interval(float(np.mean(values)), half_width(values))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Raises
    ------
    ValueError
        If a row has another number of cells than the head.
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells, got {row}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines)


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def filled(template: Path, **values: object) -> str:
    """Return a page: a template with its fields filled in.

    Parameters
    ----------
    template : Path
        Text with fields as :meth:`str.format` has them.
    **values : object
        By field.
    """
    return template.read_text().format(**values)

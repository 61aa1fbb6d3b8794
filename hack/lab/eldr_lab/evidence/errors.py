"""How far the simulation is from published numbers, beside two yardsticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import BAND
from eldr_lab.evidence.markdown import section, table
from eldr_lab.evidence.names import place
from eldr_lab.evidence.results import BEST, P50, P99, Results

_WHAT = (
    ("the simulated band", "ours"),
    ("the paper's artifact", "artifact"),
    ("a constant: the mean of the paper's other numbers", "constant"),
)


class Error(NamedTuple):
    """Root mean squares of the distance from the paper's numbers of its band, one for each model and workload; points of percent.

    Attributes
    ----------
    ours : float
        Of the simulated band.
    artifact : float
        Of the artifact's own times: how far published runs are apart.
    constant : float
        Of the mean of the paper's other numbers: what somebody guesses who knows nothing of model and workload.
    """

    ours: float
    artifact: float
    constant: float


def error(results: Results, measure: str) -> Error:
    """Return the error of one measure, P50 or P99 of time per token against the best balancer."""
    quantile = (P50, P99).index(measure)
    kinds = results.kinds("main")
    paper = [published.HEADLINE[kind][quantile] for kind in kinds]
    ours = [
        results.change(results.cells("main", workload, geometry), BAND, BEST, measure).mean
        for geometry, workload in kinds
    ]
    artifact = [published.against_best(*kind, "ELDR", quantile) for kind in kinds]
    total, others = sum(paper), max(1, len(paper) - 1)
    return Error(
        _distance(ours, paper),
        _distance(artifact, paper),
        _distance([(total - one) / others for one in paper], paper),
    )


def short(results: Results) -> str:
    """Return the model's error of P50 and P99, in points."""
    return " / ".join(f"{error(results, measure).ours:.1f}" for measure in (P50, P99))


def text(results: Results) -> str:
    """Return the section."""
    found = {measure: error(results, measure) for measure in (P50, P99)}
    rows = [
        (what, *(f"{getattr(found[measure], name):.1f}" for measure in (P50, P99))) for what, name in _WHAT
    ]
    return section(
        "The model's error",
        "± is the sampling of arrivals and activations. How far the model itself is off is seen beside published numbers: root mean square of the distance from the "
        f"paper's {len(results.kinds('main'))} numbers of its band, points. Of the default there are no published numbers.",
        table(("", "P50", "P99"), rows),
        _misses(results, found[P99]),
    )


def _misses(results: Results, tail: Error) -> str:
    """Return where the model is worst, and what its error does not cover."""
    misses = {}
    for geometry, workload in results.kinds("main"):
        paper = published.HEADLINE[geometry, workload][1]
        ours = results.change(results.cells("main", workload, geometry), BAND, BEST, P99).mean
        misses[place(geometry, workload)] = (ours, paper)
    where, (ours, paper) = max(misses.items(), key=lambda one: abs(one[1][0] - one[1][1]))
    no_better = "For P99 the model is no better than the constant. " if tail.ours >= tail.constant else ""
    return (
        f"{no_better}Its largest miss of a P99 is {abs(ours - paper):.1f} points ({where}: {ours:+.1f} for {paper:+.1f}). These are means over rates, against the best balancer: "
        "how far single cells are off, those after a drift and those of slow and fast engines, is not known."
    )


def _distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) / len(wanted))

"""Published numbers: times of the paper's artifact, and what the paper says."""

from __future__ import annotations

import csv
import functools
from enum import StrEnum
from pathlib import Path

from eldr_lab.evidence.cells import BALANCERS, RATES
from eldr_lab.report import Interval

HEADLINE = {
    ("qwen3-30b", "task"): (-13.9, -6.0), ("gpt-oss-120b", "task"): (-7.0, -3.4), ("gemma-4-26b", "task"): (-9.4, -5.2),
    ("qwen3-30b", "language"): (-10.0, -6.2), ("gpt-oss-120b", "language"): (-7.3, 1.5), ("gemma-4-26b", "language"): (-5.9, 0.2),
}  # fmt: skip
"""The paper's P50 and P99 of its band against the best balancer, mean over rates, percent."""
ACTIVE = (-22.0, -22.0)
"""Active experts of the band against round robin: Qwen3-30B, task."""
DOMAIN = (-9.7, -6.8)
"""P50 of Domain against balancers, percent."""
BEYOND_DOMAIN = ((-6.9, -1.4), (-4.5, -1.6))
"""P50 and P99 of the band against Domain, percent."""
SHARE, LEAST = 0.25, 1.0
"""A published single run may be off by a quarter of its size, and by a point."""


class Verdict(StrEnum):
    """How our number stands to a published one."""

    REPRODUCED = "reproduced"
    UNDERSTATED = "understated"
    OVERSTATED = "overstated"
    NOT = "not reproduced"


@functools.cache
def _times() -> dict[tuple[str, str, str, float], tuple[float, float]]:
    """Return the artifact's P50 and P99, milliseconds.

    They are found by model, workload, policy and rate.
    """
    with Path(__file__).with_name("published.csv").open(newline="") as file:
        return {
            (row["model"], row["workload"], row["policy"], float(row["rate"])): (
                float(row["p50_ms"]),
                float(row["p99_ms"]),
            )
            for row in csv.DictReader(file)
        }


def against_best(model: str, workload: str, policy: str, quantile: int) -> float:
    """Return an artifact's time against the best balancer's, percent.

    Parameters
    ----------
    model, workload, policy : str
    quantile : int
        0 for P50, 1 for P99.

    Returns
    -------
    float
        Mean over the rates.
    """
    changes = [
        _times()[model, workload, policy, rate][quantile]
        / min(_times()[model, workload, name, rate][quantile] for name in BALANCERS)
        - 1
        for rate in RATES
    ]
    return 100 * sum(changes) / len(changes)


def judge(ours: Interval, low: float, high: float) -> Verdict:
    """Compare our effect with a published range.

    Parameters
    ----------
    ours : Interval
    low, high : float
        The published range; equal for one number.

    Returns
    -------
    Verdict
        ``not reproduced`` if our interval holds no effect though the published number is one: its nearer end exceeds a point.
        ``reproduced`` if our interval reaches the range widened by a quarter of its nearer end; otherwise, of the same sign,
        ``overstated`` or ``understated``: the published number was measured, ours simulated; of the other, ``not reproduced``.
        A wide interval reaches no further than that quarter: little certainty of ours is no agreement.
    """
    nearest = low if ours.mean < low else high
    nothing = ours.low <= 0 <= ours.high
    if nothing and abs(nearest) > LEAST:
        return Verdict.NOT
    slack = max(LEAST, SHARE * abs(nearest))
    reach = min(ours.high - ours.mean, slack)
    if ours.mean + reach >= low - slack and ours.mean - reach <= high + slack:
        return Verdict.REPRODUCED
    if ours.mean * nearest < 0 or nothing:
        return Verdict.NOT
    return Verdict.OVERSTATED if abs(ours.mean) > abs(nearest) else Verdict.UNDERSTATED

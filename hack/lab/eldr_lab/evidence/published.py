"""Published numbers: measured times of the paper's artifact as data, and what the paper says in its text."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eldr_lab.evidence.cells import BALANCERS, RATES

ARTIFACT = "casys-kaist/ELDR, results/camera-ready-20261010-completed (single runs, 16 MI300X decode engines, 512 tokens)"
PAPER = "ELDR, arXiv 2607.00466"


class Times(NamedTuple):
    """Time per output token at P50 and P99, milliseconds."""

    p50: float
    p99: float


@functools.cache
def measured() -> Mapping[tuple[str, str, str, float], Times]:
    """Return the artifact's times by model, workload, policy and rate."""
    with Path(__file__).with_name("published.csv").open(newline="") as file:
        return {
            (row["model"], row["workload"], row["policy"], float(row["rate"])): Times(
                float(row["p50_ms"]), float(row["p99_ms"])
            )
            for row in csv.DictReader(file)
        }


def against_best(model: str, workload: str, policy: str, quantile: int) -> float:
    """Return a policy's time against the best balancer's of each rate, mean over the rates, percent.

    Parameters
    ----------
    model, workload, policy : str
    quantile : int
        0 for P50, 1 for P99.
    """
    times = measured()
    changes = [
        times[model, workload, policy, rate][quantile]
        / min(times[model, workload, name, rate][quantile] for name in BALANCERS)
        - 1
        for rate in RATES
    ]
    return 100 * sum(changes) / len(changes)


def ablated(model: str, workload: str, policy: str, quantile: int) -> float:
    """Return a policy's time of :data:`ABLATED` against round robin's, percent; quantiles as above."""
    known = ABLATED[model, workload]
    return 100 * (known[policy][quantile] / known["RoundRobin"][quantile] - 1)


def swept(model: str, workload: str, tau: str, quantile: int) -> float:
    """Return the time of a width of the band of :data:`SWEPT` against round robin's, percent; quantiles as above."""
    return 100 * (SWEPT[model, workload][tau][quantile] / SWEPT_ROUND_ROBIN[model, workload][quantile] - 1)


@dataclass(frozen=True, slots=True)
class Range:
    """A published number or range, and where it stands."""

    low: float
    high: float
    source: str

    def __str__(self) -> str:
        text = f"{self.low:+.1f}" if self.low == self.high else f"{self.low:+.1f} .. {self.high:+.1f}"
        return f"{text} ({self.source})"


HEADLINE = {
    ("qwen3-30b", "task"): (-13.9, -6.0), ("gpt-oss-120b", "task"): (-7.0, -3.4), ("gemma-4-26b", "task"): (-9.4, -5.2),
    ("qwen3-30b", "language"): (-10.0, -6.2), ("gpt-oss-120b", "language"): (-7.3, 1.5), ("gemma-4-26b", "language"): (-5.9, 0.2),
}  # fmt: skip
"""The paper's P50 and P99 of its band against the best balancer, mean over rates, percent."""
ACTIVE = Range(-22.0, -22.0, "paper")
"""Active experts of the band against round robin: Qwen3-30B, task."""
POOLS = {8: (-8.0, -2.5), 16: (-9.8, -0.8), 24: (-10.2, -1.1)}
"""P50 and P99 of the band against round robin by number of decode engines: Qwen3-30B, language, mean over 20 to 100 requests/s, percent (Table 2)."""
DOMAIN = Range(-9.7, -6.8, "paper")
"""P50 of Domain against balancers, percent."""
BEYOND_DOMAIN = (Range(-6.9, -1.4, "paper"), Range(-4.5, -1.6, "paper"))
"""P50 and P99 of the band against Domain, percent."""
CORRELATION = Range(0.70, 0.92, "paper, Fig 3")
"""Correlation of an expert's use by prompts and by decode steps."""
UNIONS = {"task": Range(-21.0, -17.0, "paper"), "language": Range(-10.0, -3.0, "paper")}
"""Experts of a batch of one kind against a mixed one, percent."""
RHO = {"counts_idf": 0.76, "probability": 0.67, "binary": 0.47}
"""Spearman's rho of signatures with decode-time activations, mean over models and workloads."""
IDF_GAIN = 1.5
"""Points of rho that weighting by rarity adds, mean."""
MASK_GAIN = (0.005, 0.032)
"""Rho of the chosen layers above that of all layers."""
IDF_AGAINST_GATE = -3.0
"""P50 of the band by counts x idf against that by gate probabilities, mean, percent (Fig 14)."""

ABLATED = {
    ("qwen3-30b", "task"): {"RoundRobin": (26.84, 27.54), "ELDR": (22.59, 25.57), "ELDR-vanilla": (22.13, 25.41)},
    ("gpt-oss-120b", "task"): {"RoundRobin": (46.08, 49.84), "ELDR": (38.13, 46.34), "ELDR-vanilla": (43.96, 48.73)},
    ("gemma-4-26b", "task"): {"RoundRobin": (23.83, 25.49), "ELDR": (21.08, 23.18), "ELDR-vanilla": (21.23, 24.19)},
    ("qwen3-30b", "language"): {"RoundRobin": (27.17, 27.72), "ELDR": (24.26, 26.70), "ELDR-vanilla": (24.11, 26.30)},
    ("gpt-oss-120b", "language"): {"RoundRobin": (42.90, 45.48), "ELDR": (39.80, 47.74), "ELDR-vanilla": (44.07, 57.14)},
    ("gemma-4-26b", "language"): {"RoundRobin": (25.23, 27.03), "ELDR": (22.88, 25.17), "ELDR-vanilla": (22.46, 26.02)},
}  # fmt: skip
"""Artifact's P50 and P99 with balanced and plain K-means at 60 requests/s, milliseconds."""
SWEPT = {
    ("qwen3-30b", "task"): {"0": (22.84, 26.08), "0.1": (22.86, 25.88), "0.2": (23.08, 26.00), "0.3": (23.22, 26.14)},
    ("gpt-oss-120b", "task"): {"0": (39.48, 48.38), "0.1": (38.15, 47.08), "0.2": (38.18, 46.52), "0.3": (38.82, 46.47)},
    ("gemma-4-26b", "task"): {"0": (21.47, 23.76), "0.1": (21.15, 23.30), "0.2": (21.25, 23.44), "0.3": (21.43, 23.31)},
    ("qwen3-30b", "language"): {"0": (23.68, 26.56), "0.1": (24.34, 26.87), "0.2": (24.76, 27.04), "0.3": (25.05, 27.28)},
    ("gpt-oss-120b", "language"): {"0": (40.55, 48.96), "0.1": (39.88, 47.35), "0.2": (40.85, 47.49), "0.3": (41.57, 47.65)},
    ("gemma-4-26b", "language"): {"0": (22.39, 25.41), "0.1": (22.89, 25.18), "0.2": (23.45, 25.42), "0.3": (23.86, 25.70)},
}  # fmt: skip
"""Artifact's P50 and P99 by width of the band at 60 requests/s, milliseconds."""
SWEPT_ROUND_ROBIN = {
    ("qwen3-30b", "task"): (26.97, 27.61), ("gpt-oss-120b", "task"): (46.44, 48.23), ("gemma-4-26b", "task"): (23.89, 25.68),
    ("qwen3-30b", "language"): (27.17, 27.75), ("gpt-oss-120b", "language"): (42.81, 44.83), ("gemma-4-26b", "language"): (25.39, 26.99),
}  # fmt: skip
"""Artifact's round robin in the runs of :data:`SWEPT`."""
VANILLA_WORST_P99 = 17.4
"""The paper's worst P99 of plain K-means against the best balancer, percent."""
TOP1_P99 = {("gemma-4-26b", "task"): 6.7, ("gemma-4-26b", "language"): 7.9}
"""The paper's P99 of tau = 0 against the best balancer, percent, of the cells that it names."""

PREFIX = (-13.0, -5.0)
"""The paper's P50 and P99 of its band, with prefix caches as well as without, percent, rounded (Fig 17)."""
FIRST, FIRST_WHERE, FIRST_RATE = 69.0, ("qwen3-30b", "task"), 60.0
"""Time to first token that the paper sets its overhead of 0.86 ms (1.2 %) beside (Table 1), milliseconds."""

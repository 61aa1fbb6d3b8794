"""How strongly each model's experts prefer kinds of requests: tuned on published times of Domain, and on nothing else.

The product's synthetic workloads have the strengths of Qwen3-30B's published unions. A factor per model scales how much kinds
of requests, domains as well as their topics, prefer experts, so that the simulated *Domain* changes P50 on the task workload as the artifact measured. No time of ELDR, none of
the language workload and no P99 is looked at: those rows are out of sample.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from eldr_lab.synthetic.activations import WORKLOADS, Strengths

FACTORS = Path(__file__).with_name("strengths.json")


class Tuned(TypedDict):
    """What a model was tuned to: the factor, and Domain's P50 against the best balancer, percent, found and published."""

    factor: float
    found: float
    published: float


class Point(NamedTuple):
    """A factor that was tried, and the change of Domain's P50 that it led to, percent."""

    factor: float
    change: float


def read(path: Path = FACTORS) -> dict[str, Tuned]:
    """Return what every model was tuned to."""
    found: dict[str, Tuned] = json.loads(path.read_text())
    return found


def factors(tuned: Mapping[str, Tuned] | None = None) -> dict[str, float]:
    """Return the factor of each model that was tuned; the others have Qwen3-30B's."""
    return {model: one["factor"] for model, one in (read() if tuned is None else tuned).items()}


def strengths(workload: str, factor: float) -> Strengths:
    """Return a workload's strengths with other ones of its domains and their topics."""
    known = WORKLOADS[workload]
    return replace(known, domain=factor * known.domain, subdomain=factor * known.subdomain)


def solved(points: list[Point], wanted: float) -> float:
    """Return the factor that leads to the wanted change, on straight lines between those that were tried.

    Raises
    ------
    ValueError
        If no two of them have it between them.
    """
    for left, right in itertools.pairwise(sorted(points)):
        if min(left.change, right.change) <= wanted <= max(left.change, right.change):
            part = (wanted - left.change) / (right.change - left.change)
            return left.factor + part * (right.factor - left.factor)
    raise ValueError(f"no factor of {[point.factor for point in points]} leads to {wanted:+.1f} %")

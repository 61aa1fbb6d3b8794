"""What placements rested on, as the routers count it: a phase is shown only if most rested on what its policy names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from eldr.contract import PATH_METRICS, POLICY_ELDR, POLICY_MARGINAL
from eldr_demo.plan import BASE, Measure

_PLACEMENTS, _SIMILARITY = "eldr_router_placements", "eldr_router_similarity"
_REASONS = {BASE: "policy", POLICY_ELDR: "similarity", POLICY_MARGINAL: "union"}
_NONE = {"-", "none yet"}
"""What a phase says of centroids where routers have none, or no use for them."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Placements so far, of one router or of several.

    Attributes
    ----------
    reasons : Counter of (str, str)
        By policy and reason.
    similar : float
        Those that a similarity to centroids was known for.
    """

    reasons: Counter[tuple[str, str]]
    similar: float

    def __add__(self, other: Basis) -> Basis:
        return Basis(self.reasons + other.reasons, self.similar + other.similar)

    def __sub__(self, other: Basis) -> Basis:
        return Basis(self.reasons - other.reasons, self.similar - other.similar)


def parse(metrics: str) -> Basis:
    """Read a router's metrics."""
    reasons: Counter[tuple[str, str]] = Counter()
    similar = 0.0
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == f"{_PLACEMENTS}_total":
                reasons[sample.labels["policy"], sample.labels["reason"]] += int(sample.value)
            elif sample.name == f"{_SIMILARITY}_count":
                similar += sample.value
    return Basis(reasons, similar)


def check(step: Measure, found: Basis) -> None:
    """Raise RuntimeError unless most placements of a phase rested on what its policy and centroids name."""
    total = found.reasons.total()
    told = ", ".join(f"{n} by {policy}: {reason}" for (policy, reason), n in found.reasons.most_common())
    if not 2 * found.reasons[step.policy, _REASONS[step.policy]] > total:
        raise RuntimeError(f"{step.name}: few placements rest on {_REASONS[step.policy]}: {told or 'none'}")
    if step.centroids not in _NONE and not 2 * found.similar > total:
        raise RuntimeError(f"{step.name}: a similarity to centroids was known for {found.similar:g} of {total} placements")  # fmt: skip


async def read(urls: Sequence[str]) -> Basis:
    """Return what the routers at these base URLs of their admin ports counted so far, together."""
    transport = httpx.AsyncHTTPTransport(retries=3)
    async with httpx.AsyncClient(timeout=30.0, transport=transport) as client:
        pages = await asyncio.gather(*(client.get(f"{url}{PATH_METRICS}") for url in urls))
    return sum((parse(page.raise_for_status().text) for page in pages), Basis(Counter(), 0.0))

"""What the decode engines tell about their steps, sampled once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums over all decode steps so far.

    Attributes
    ----------
    steps : float
    experts : float
        Distinct experts, mean over the layers, summed over the steps.
    requests : float
        Batch size, summed over the steps.
    """

    steps: float = 0.0
    experts: float = 0.0
    requests: float = 0.0

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(
            self.steps + other.steps, self.experts + other.experts, self.requests + other.requests
        )

    def __sub__(self, other: StepTotals) -> StepTotals:
        return StepTotals(
            self.steps - other.steps, self.experts - other.experts, self.requests - other.requests
        )

    @property
    def active_experts(self) -> float:
        """Distinct experts per step."""
        return self.experts / self.steps if self.steps else float("nan")

    @property
    def batch(self) -> float:
        """Requests per step."""
        return self.requests / self.steps if self.steps else float("nan")


def parse(metrics: str) -> StepTotals:
    """Read the totals of one engine from its metrics."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name in {contract.METRIC_ACTIVE_EXPERTS, contract.METRIC_BATCH_SIZE}:
            values |= {
                sample.name: sample.value for sample in family.samples if not sample.name.endswith("_bucket")
            }
    return StepTotals(
        steps=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_count", 0.0),
        experts=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_sum", 0.0),
        requests=values.get(f"{contract.METRIC_BATCH_SIZE}_sum", 0.0),
    )


@dataclass(slots=True)
class Sampler:
    """Samples the totals of all decode engines.

    Parameters
    ----------
    engines : callable
        Returns the engines' base URLs.
    """

    engines: Callable[[], Sequence[str]]
    samples: list[tuple[float, StepTotals]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Sample once a second until told to stop."""
        async with httpx.AsyncClient(timeout=10.0) as client:
            while not stop.is_set():
                await self.sample(client)
                await asyncio.sleep(1.0)

    async def sample(self, client: httpx.AsyncClient) -> None:
        """Take one sample of all engines."""
        answers = await asyncio.gather(*(client.get(f"{url}/metrics") for url in self.engines()))
        total = sum((parse(answer.text) for answer in answers), StepTotals())
        self.samples.append((asyncio.get_running_loop().time(), total))

    def between(self, start: float, end: float) -> StepTotals:
        """Return the totals of a span of the loop's clock."""
        inside = [total for at, total in self.samples if start <= at <= end]
        return inside[-1] - inside[0] if len(inside) > 1 else StepTotals()

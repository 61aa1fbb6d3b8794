"""What the decode engines tell about their steps and finished requests, sampled once a second."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract
from eldr.wire import decode_counts

Floats = npt.NDArray[np.float64]
NOTHING: Floats = np.zeros((1, 1))
_PAGE = 256


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums of one engine, or of several, so far.

    Attributes
    ----------
    steps : float
    experts : float
        Distinct experts, mean over the layers, summed over the steps.
    requests : float
        Batch size, summed over the steps.
    chosen : ndarray of float64, shape (n_layers, n_experts)
        How often finished requests chose each expert.
    tokens : float
        Tokens that ``chosen`` counts.
    """

    steps: float = 0.0
    experts: float = 0.0
    requests: float = 0.0
    chosen: Floats = field(default_factory=lambda: NOTHING)
    tokens: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.steps + other.steps,
            self.experts + other.experts,
            self.requests + other.requests,
            self.chosen + other.chosen,
            self.tokens + other.tokens,
        )

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            self.steps - other.steps,
            self.experts - other.experts,
            self.requests - other.requests,
            self.chosen - other.chosen,
            self.tokens - other.tokens,
        )

    @property
    def active_experts(self) -> float:
        """Distinct experts per step."""
        return self.experts / self.steps if self.steps else float("nan")

    @property
    def batch(self) -> float:
        """Requests per step."""
        return self.requests / self.steps if self.steps else float("nan")

    def of_random_batch(self, batch: float) -> float:
        """Return the distinct experts to expect of a batch of tokens drawn at random from the finished requests.

        With the share ``p`` of tokens that choose an expert, ``1 - (1 - p) ** batch`` of such batches use it.
        """
        if not self.tokens:
            return float("nan")
        share = np.minimum(self.chosen / self.tokens, 1.0)
        return float((1.0 - (1.0 - share) ** batch).sum(1).mean())


def parse(metrics: str) -> Totals:
    """Read the totals of one engine's steps from its metrics."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name in {contract.METRIC_ACTIVE_EXPERTS, contract.METRIC_BATCH_SIZE}:
            values |= {
                sample.name: sample.value for sample in family.samples if not sample.name.endswith("_bucket")
            }
    return Totals(
        steps=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_count", 0.0),
        experts=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_sum", 0.0),
        requests=values.get(f"{contract.METRIC_BATCH_SIZE}_sum", 0.0),
    )


@dataclass(slots=True)
class Reader:
    """Reads one engine's metrics, and its activation records each once.

    Parameters
    ----------
    url : str
    """

    url: str
    _cursor: int = 0
    _boot: str = ""
    _finished: Totals = field(default_factory=Totals)

    async def read(self, client: httpx.AsyncClient) -> Totals:
        """Return the engine's totals now."""
        metrics = await client.get(f"{self.url}/metrics")
        while await self._read_page(client):
            pass
        return parse(metrics.text) + self._finished

    async def _read_page(self, client: httpx.AsyncClient) -> bool:
        query: dict[str, str | int] = {"after": self._cursor, "boot": self._boot, "limit": _PAGE}
        answer = await client.get(f"{self.url}{contract.PATH_ACTIVATIONS}", params=query)
        page = answer.raise_for_status().json()
        self._cursor, self._boot = page["next"], page["boot"]
        for record in page["records"]:
            counts = decode_counts(record)
            self._finished += Totals(chosen=counts.counts.astype(np.float64), tokens=counts.tokens)
        return len(page["records"]) == _PAGE


@dataclass(slots=True)
class Sampler:
    """Samples the totals of all decode engines.

    Parameters
    ----------
    engines : callable
        Returns the engines' base URLs, always as many and in one order.
    """

    engines: Callable[[], Sequence[str]]
    samples: list[tuple[float, list[Totals]]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Sample once a second until told to stop."""
        readers = [Reader(url) for url in self.engines()]
        async with httpx.AsyncClient(timeout=30.0) as client:
            while not stop.is_set():
                totals = await asyncio.gather(*(reader.read(client) for reader in readers))
                self.samples.append((asyncio.get_running_loop().time(), totals))
                await asyncio.sleep(1.0)

    def between(self, start: float, end: float) -> Totals:
        """Return the totals of all engines in a span of the loop's clock."""
        inside = [sum(totals, Totals()) for at, totals in self.samples if start <= at <= end]
        return inside[-1] - inside[0] if len(inside) > 1 else Totals()

    def against_random(self, start: float, end: float) -> float:
        """Return how the active experts of a span compare with those of equally large random batches.

        Returns
        -------
        float
            -0.05 for 5 % fewer; nan where nothing ran. Every second of every engine is compared at its own batch, so that
            spans can be compared although a machine keeps other batches in each.
        """
        mix = self.between(start, end)
        spans = list(self._engine_spans(start, end))
        expected = sum(span.steps * mix.of_random_batch(span.batch) for span in spans)
        return sum(span.experts for span in spans) / expected - 1.0 if expected else float("nan")

    def _engine_spans(self, start: float, end: float) -> Iterator[Totals]:
        inside = [totals for at, totals in self.samples if start <= at <= end]
        for before, after in itertools.pairwise(inside):
            for old, new in zip(before, after, strict=True):
                if new.steps > old.steps:
                    yield new - old

"""What the decode engines tell about their steps and finished requests, sampled once a second."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract
from eldr.clients import UNBOUNDED
from eldr.core.random_batches import random_unions
from eldr.wire import decode_counts

Floats = npt.NDArray[np.float64]
_READ = {contract.METRIC_ACTIVE_EXPERTS, contract.METRIC_BATCH_SIZE, contract.METRIC_STEP_SECONDS}
_PAGE = 256
_MOST_FAILURES = 10
"""In a row; they come a second apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums of one engine, or of several, so far.

    Attributes
    ----------
    experts : float
        Distinct experts, mean over the layers, summed over the steps.
    requests : float
        Batch size, summed over the steps.
    batches : ndarray of float64, shape (n_buckets,)
        Steps by batch size, in the buckets of the contract.
    chosen : ndarray of float64, shape (n_layers, n_experts)
        How often finished requests chose each expert.
    tokens : float
        Tokens that ``chosen`` counts.
    seen : float
        Distinct experts of a step, summed over the tokens it made: as each token sees it.
    busy, clock : float
        What the steps should have taken, as simulated engines report it, and the time that has passed on each engine; seconds.
    """

    steps: float = 0.0
    experts: float = 0.0
    requests: float = 0.0
    batches: Floats = field(default_factory=lambda: np.zeros(len(contract.BATCH_BUCKETS)))
    chosen: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    tokens: float = 0.0
    seen: float = 0.0
    busy: float = 0.0
    clock: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return self._combine(other, operator.add)

    def __sub__(self, other: Totals) -> Totals:
        return self._combine(other, operator.sub)

    def _combine(self, other: Totals, how: Callable[[Any, Any], Any]) -> Totals:
        return Totals(*(how(getattr(self, f.name), getattr(other, f.name)) for f in fields(Totals)))

    @property
    def active_experts(self) -> float:
        """Distinct experts per step."""
        return self.experts / self.steps if self.steps else float("nan")

    @property
    def experts_per_token(self) -> float:
        """Distinct experts of the step that makes a token: unlike a mean over steps it does not praise small batches."""
        return self.seen / self.requests if self.requests else float("nan")

    @property
    def batch(self) -> float:
        """Requests per step."""
        return self.requests / self.steps if self.steps else float("nan")

    @property
    def kept_up(self) -> float:
        """Share of the time that simulated engines computed: below 1, other programs kept the processors from them, or nothing was to do."""
        return self.busy / self.clock if self.clock else float("nan")

    @property
    def against_random(self) -> float:
        """How active experts compare with batches of the same sizes, drawn at random from the finished requests.

        -0.05 for 5 % fewer, nan where nothing ran. So spans can be compared although a busy machine keeps other batches in each.
        """
        steps = self.batches.sum()
        if not self.tokens or not steps:
            return float("nan")
        expected = float(self.batches @ random_unions(self.chosen / self.tokens, contract.BATCH_BUCKETS))
        return float(self.experts / self.steps / (expected / steps) - 1.0)


def parse(metrics: str) -> Totals:
    """Read the totals of one engine's steps from its metrics."""
    values: dict[str, float] = {}
    below: dict[float, float] = {}
    for family in text_string_to_metric_families(metrics):
        if family.name in _READ:
            for sample in family.samples:
                if sample.name == f"{contract.METRIC_BATCH_SIZE}_bucket":
                    below[float(sample.labels["le"])] = sample.value
                else:
                    values[sample.name] = sample.value
    return Totals(
        steps=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_count", 0.0),
        experts=values.get(f"{contract.METRIC_ACTIVE_EXPERTS}_sum", 0.0),
        requests=values.get(f"{contract.METRIC_BATCH_SIZE}_sum", 0.0),
        busy=values.get(f"{contract.METRIC_STEP_SECONDS}_sum", 0.0),
        batches=np.diff([0.0, *(below.get(float(bound), 0.0) for bound in contract.BATCH_BUCKETS)]),
    )


@dataclass(slots=True)
class Reader:
    """Reads one engine's metrics, and its activation records each once."""

    url: str
    _cursor: int = 0
    _boot: str = ""
    _finished: Totals = field(default_factory=Totals)
    _last: Totals = field(default_factory=Totals)
    _seen: float = 0.0

    async def read(self, client: httpx.AsyncClient) -> Totals:
        """Return the engine's totals now."""
        metrics = await client.get(f"{self.url}/metrics")
        while await self._read_page(client):
            pass
        steps = parse(metrics.text)
        since = steps - self._last
        if since.steps:
            # within the second between two reads an engine's batch hardly changes
            self._seen += since.active_experts * since.requests
        self._last = steps
        clock = asyncio.get_running_loop().time()
        return replace(steps + self._finished, seen=self._seen, clock=clock)

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
        Returns the engines' base URLs.
    """

    engines: Callable[[], Sequence[str]]
    samples: list[tuple[float, Totals]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Sample once a second until told to stop."""
        readers = [Reader(url) for url in self.engines()]
        failures = 0
        async with httpx.AsyncClient(timeout=30.0, limits=UNBOUNDED) as client:
            while not stop.is_set():
                try:
                    totals = await asyncio.gather(*(reader.read(client) for reader in readers))
                except httpx.TransportError:
                    # a server that closes a kept connection just as it is used again is no failure of the run
                    failures += 1
                    if failures > _MOST_FAILURES:
                        raise
                else:
                    failures = 0
                    self.samples.append((asyncio.get_running_loop().time(), sum(totals, Totals())))
                await asyncio.sleep(1.0)

    def between(self, start: float, end: float) -> Totals:
        """Return the totals of a span of the loop's clock."""
        inside = [total for at, total in self.samples if start <= at <= end]
        return inside[-1] - inside[0] if len(inside) > 1 else Totals()

"""Arrivals whose mix of kinds drifts, and prompts that prefill engines take time for."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from eldr.simulate.population import Ints
from eldr.simulate.workload import Times, Window, Workload, last_arrival, poisson
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.workload import arranged, draw_labels, draw_records, lengths


@dataclass(frozen=True, slots=True)
class Prefill:
    """Engines that compute prompts, one at a time, first come first served.

    Attributes
    ----------
    engines : int
    fixed, per_token : float
        Seconds of a prompt, and of each of its tokens.
    """

    engines: int
    fixed: float
    per_token: float

    def seconds(self, tokens: Ints) -> Times:
        """Return how long prompts of which so many tokens are computed take."""
        seconds: Times = self.fixed + self.per_token * tokens.astype(np.float64)
        return seconds


@dataclass(frozen=True, slots=True)
class Drift:
    """When the mix of labels changes, seconds, and their shares afterwards."""

    at: float
    shares: tuple[float, ...]


def make_workload(
    population: Population,
    *,
    rate: float,
    window: Window,
    seed: int,
    output_tokens: int | None,
    drift: Drift | None = None,
    prefill: Prefill | None = None,
    cache: PrefixCache | None = None,
) -> Workload:
    """Draw Poisson arrivals, the same ones as :func:`eldr_lab.synthetic.workload.make_workload`.

    Parameters
    ----------
    population, rate, window, seed, output_tokens
        As there.
    drift : Drift, optional
    prefill : Prefill, optional
        Without, prompts take no time.
    cache : PrefixCache, optional
        Tokens that prefill engines need not compute.

    Raises
    ------
    ValueError
        As there.
    """
    arrival = poisson(rate, last_arrival(rate, window), np.random.default_rng([seed, 1]))
    rng = np.random.default_rng([seed, 2])
    label = draw_labels(population, len(arrival), rng)
    if drift is not None:
        later = rng.choice(len(population.labels), len(arrival), p=drift.shares)
        label = np.where(arrival < drift.at, label, later)
    record = draw_records(population, label, rng)
    ready = arrival
    if prefill is not None:
        tokens = population.prompt_tokens[record]
        ready = _prefilled(prefill, arrival, tokens if cache is None else tokens - cache.found(tokens))
    return arranged(arrival, ready, record, lengths(population, record, output_tokens), window)


def _prefilled(prefill: Prefill, arrival: Times, tokens: Ints) -> Times:
    free = [0.0] * prefill.engines
    ready = np.empty(len(arrival))
    for at, (time, seconds) in enumerate(
        zip(arrival.tolist(), prefill.seconds(tokens).tolist(), strict=True)
    ):
        ready[at] = max(time, heapq.heappop(free)) + seconds
        heapq.heappush(free, float(ready[at]))
    return ready

"""A pool and its load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.engine import Limits
from eldr.simulate.laws import scaled
from eldr.simulate.load import OperatingPoint, at_batch, at_rate
from eldr.simulate.population import Ints, Population
from eldr.simulate.prefix import PrefixCache
from eldr.simulate.replicas import Replicas
from eldr.simulate.workload import Prefill, Window

ArrivalTimes = Literal["poisson", "logged"]
"""Requests come at random, or with the gaps between the requests of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pool and its load; all that policies are compared under.

    Attributes
    ----------
    engines : int
    rate, batch : float or None
        Requests per second, or the mean batch of an engine that the rate should lead to; neither: the log's own rate.
    law : StepTime
        Of the experts on an engine's fullest rank.
    speeds : tuple of float
        Times as long as the law says, of engine after engine, repeated.
    limits : Limits
    ranks : int
        Of every engine, each with its part of the experts.
    spread : bool
        Whether the hot experts of each engine's cluster are dealt out to its ranks, or its replicas placed for that cluster.
    replicas : Replicas or None
        Of experts, on the ranks of every engine.
    warmup : float or None
        Before anything is measured, seconds; None: twice as long as a request stays, and as long as the longest.
    seconds : float
        Arrivals that are measured come in this time, after warm-up and drift.
    output_tokens : int or None
        None: as long as each request's answer was.
    sampled : bool
    drift_at : float
        Seconds; infinity for none.
    cache : PrefixCache or None
        Of the prefill engines.
    prefill : Prefill or None
    routers : int
    lag : float
        Seconds.
    arrivals : ArrivalTimes
    """

    engines: int
    rate: float | None
    batch: float | None
    law: StepTime
    speeds: tuple[float, ...]
    limits: Limits
    ranks: int = 1
    spread: bool = False
    replicas: Replicas | None = None
    warmup: float | None
    seconds: float
    output_tokens: int | None
    sampled: bool
    drift_at: float
    cache: PrefixCache | None = None
    prefill: Prefill | None
    routers: int
    lag: float
    arrivals: ArrivalTimes = "poisson"

    @property
    def laws(self) -> tuple[StepTime, ...]:
        """One per engine."""
        return tuple(scaled(self.law, speed) for speed in self.engine_speeds)

    @property
    def engine_speeds(self) -> list[float]:
        """Times as long as the law, one per engine."""
        return [self.speeds[at % len(self.speeds)] for at in range(self.engines)]

    def lengths(self, population: Population) -> Ints:
        """Return the steps of each of a population's requests, shape (n,)."""
        if self.output_tokens is not None:
            return np.full(len(population), self.output_tokens, dtype=np.int64)
        if population.output_tokens is None:
            raise ValueError("output_tokens: expected a number, these requests have no lengths of their own")
        return population.output_tokens

    def operating_point(self, population: Population, seed: int) -> OperatingPoint:
        """Return the even load that the rate, or the batch that is wanted, stands for."""
        rng = np.random.default_rng([seed, 6])
        tokens = float(self.lengths(population).mean())
        rate = self.rate
        if rate is None and self.batch is not None:
            return at_batch(self.laws, population, tokens, self.batch, rng, ranks=self.ranks)
        if rate is None and population.arrivals is not None:
            rate = population.arrivals.rate
        if rate is None:
            raise ValueError("rate: expected one or a batch, these requests have no rate of their own")
        return at_rate(
            self.laws, population, tokens, rate, rng, most=self.limits.max_num_seqs, ranks=self.ranks
        )

    def window(self, population: Population, step: float) -> Window:
        """Return what is measured where a step of the slowest engine takes so many seconds."""
        lengths = self.lengths(population)
        # until as many of the longest requests leave as come
        warmup = step * max(2.0 * float(lengths.mean()), float(lengths.max()))
        if self.warmup is not None:
            warmup = self.warmup
        if self.drift_at < math.inf:
            warmup = max(warmup, self.drift_at)
        end = warmup + self.seconds
        return Window(warmup, end, cooldown=end)  # the run is over when the last measured request has ended

"""A pool and its load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.drafts import NO_DRAFTS, Drafts
from eldr.simulate.engine import Limits
from eldr.simulate.population import Ints
from eldr.simulate.workload import Window, Workload
from eldr_lab.synthetic.load import OperatingPoint, at_batch, at_rate
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.workload import lengths, make_workload

DRAWS = 8
"""Batches that the experts of an even load are a mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pool and its load; all that policies are compared under.

    Attributes
    ----------
    rate, batch : float or None
        Requests per second, or the mean batch of an engine that the rate should lead to.
    speeds : tuple of float
        Factors of the step-time model, of engine after engine, repeated.
    warmup : float or None
        Before anything is measured, seconds; None: twice as long as a request stays, and as long as the longest.
    seconds : float
        Arrivals that are measured come in this time, after the warm-up.
    output_tokens : int or None
        None: as long as each request's answer was.
    """

    engines: int
    rate: float | None
    batch: float | None
    step_time: StepTime
    speeds: tuple[float, ...]
    limits: Limits
    warmup: float | None = None
    seconds: float
    output_tokens: int | None
    sampled: bool
    drafts: Drafts = NO_DRAFTS

    @property
    def step_times(self) -> tuple[StepTime, ...]:
        """One per engine."""
        step_time = self.drafts.slowed(self.step_time)
        return tuple(step_time.scaled(self.speeds[at % len(self.speeds)]) for at in range(self.engines))

    def lengths(self, population: Population) -> Ints:
        """Return the steps of each of a population's requests, shape (n,)."""
        return lengths(population, np.arange(len(population)), self.output_tokens, self.drafts.per_step)

    def operating_point(self, population: Population, seed: int) -> OperatingPoint:
        """Return the even load that the rate, or the batch that is wanted, stands for."""
        rng = np.random.default_rng([seed, 6])
        population = self.drafts.fed(population)
        tokens = float(self.lengths(population).mean())

        def used(batch: float) -> float:
            return self.used(population, batch, rng)

        rate = self.rate
        if rate is None and self.batch is not None:
            return at_batch(self.step_times, used, tokens, self.batch)
        if rate is None:
            raise ValueError("rate: expected one or a batch")
        return at_rate(self.step_times, used, tokens, rate, most=self.limits.max_num_seqs)

    def used(self, population: Population, batch: float, rng: np.random.Generator) -> float:
        """Return the distinct experts per layer that a step of a mean batch waits for."""
        return population.active(batch, rng, DRAWS)

    def workload(self, population: Population, rate: float, window: Window, seed: int) -> Workload:
        """Draw requests at a rate."""
        return make_workload(
            population, rate=rate, window=window, seed=seed,
            output_tokens=self.output_tokens, per_step=self.drafts.per_step,
        )  # fmt: skip

    def window(self, population: Population, step: float) -> Window:
        """Return what is measured where a step of the slowest engine takes so many seconds."""
        lengths = self.lengths(population)
        # until as many of the longest requests leave as come
        warmup = step * max(2.0 * float(lengths.mean()), float(lengths.max()))
        if self.warmup is not None:
            warmup = self.warmup
        end = warmup + self.seconds
        return Window(warmup, end, cooldown=end)  # the run is over when the last measured request has ended

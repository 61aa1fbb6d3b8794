"""A pool and its load, with what only studies vary: drift, prefill, routers, engines that come."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from eldr.simulate.population import Ints
from eldr.simulate.workload import Times, Window, Workload, last_arrival, poisson
from eldr_lab.synthetic import setting
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

    def ready(self, arrival: Times, tokens: Ints) -> Times:
        """Return when prompts of so many tokens are computed."""
        free = [0.0] * self.engines
        ready = np.empty(len(arrival))
        seconds = self.fixed + self.per_token * tokens.astype(np.float64)
        for at, (time, takes) in enumerate(zip(arrival.tolist(), seconds.tolist(), strict=True)):
            ready[at] = max(time, heapq.heappop(free)) + takes
            heapq.heappush(free, float(ready[at]))
        return ready


@dataclass(frozen=True, slots=True)
class Drift:
    """When the mix of labels changes, seconds, and their shares afterwards."""

    at: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(setting.Setting):
    """A pool and its load.

    Attributes
    ----------
    drift : Drift or None
        Of the mix of requests; what comes after it is measured.
    prefill : Prefill or None
        None: prompts take no time.
    routers : int
        Requests go to them in turn.
    lag : float
        How often several routers report to each other what they placed, seconds.
    joins : tuple of (int, float)
        Engines that are not there from the start, and when each comes, seconds.
    restarts : float
        When each router forgets what it learned of its prior, seconds.
    """

    drift: Drift | None = None
    prefill: Prefill | None = None
    routers: int = 1
    lag: float = 0.25
    joins: tuple[tuple[int, float], ...] = ()
    restarts: float = math.inf

    def window(self, population: Population, step: float) -> Window:
        """Return what is measured where the slowest step takes so many seconds."""
        # the two-argument form: slots make this another class than the one that super() would look for
        window = super(Setting, self).window(population, step)
        if self.drift is None or window.warmup >= self.drift.at:
            return window
        end = self.drift.at + self.seconds
        return Window(self.drift.at, end, cooldown=end)

    def workload(self, population: Population, rate: float, window: Window, seed: int) -> Workload:
        """Draw Poisson arrivals, the same ones as the product's simulator."""
        arrival = poisson(rate, last_arrival(rate, window), np.random.default_rng([seed, 1]))
        rng = np.random.default_rng([seed, 2])
        label = draw_labels(population, len(arrival), rng)
        if self.drift is not None:
            later = rng.choice(len(population.labels), len(arrival), p=self.drift.shares)
            label = np.where(arrival < self.drift.at, label, later)
        record = draw_records(population, label, rng)
        ready = (
            arrival if self.prefill is None else self.prefill.ready(arrival, population.prompt_tokens[record])
        )
        return arranged(arrival, ready, record, lengths(population, record, self.output_tokens), window)

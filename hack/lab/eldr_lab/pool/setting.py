"""A pool and its load, with what only studies vary."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.workload import Window
from eldr_lab.pool.active import used_on_fullest
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.pool.replicas import Replicas
from eldr_lab.pool.workload import Drift, Prefill
from eldr_lab.synthetic import setting
from eldr_lab.synthetic.population import Population


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(setting.Setting):
    """A pool and its load.

    Attributes
    ----------
    ranks : int
        Of every engine, each with its part of the experts; the step-time model is that of the fullest one.
    spread : bool
        Whether the hot experts of each engine's cluster are dealt out to its ranks, or its replicas placed for that cluster.
    replicas : Replicas or None
        Of experts, on the ranks of every engine.
    drift : Drift or None
        Of the mix of requests; what comes after it is measured.
    cache : PrefixCache or None
        Of the prefill engines.
    prefill : Prefill or None
        None: prompts take no time.
    routers : int
        Requests go to them in turn.
    lag : float
        How often several routers tell each other what they placed, seconds.
    joins : tuple of (int, float)
        Engines that are not there from the start, and when each comes, seconds.
    restarts : float
        When each router forgets what it learned of its prior, seconds.
    """

    ranks: int = 1
    spread: bool = False
    replicas: Replicas | None = None
    drift: Drift | None = None
    cache: PrefixCache | None = None
    prefill: Prefill | None = None
    routers: int = 1
    lag: float = 0.25
    joins: tuple[tuple[int, float], ...] = ()
    restarts: float = math.inf

    @property
    def known_step_times(self) -> tuple[StepTime, ...]:
        """What routers know of the engines: they see experts of whole engines, and of R ranks each has about an R-th of them."""
        return tuple(replace(law, per_expert=law.per_expert / self.ranks) for law in self.step_times)

    def used(self, population: Population, batch: float, rng: np.random.Generator) -> float:
        """Return the distinct experts per layer that a step of a mean batch waits for."""
        return used_on_fullest(population, batch, rng, setting.DRAWS, self.ranks)

    def window(self, population: Population, step: float) -> Window:
        """Return what is measured where a step of the slowest engine takes so many seconds."""
        # the two-argument form: slots make this another class than the one that super() would look for
        window = super(Setting, self).window(population, step)
        if self.drift is None or window.warmup >= self.drift.at:
            return window
        end = self.drift.at + self.seconds
        return Window(self.drift.at, end, cooldown=end)

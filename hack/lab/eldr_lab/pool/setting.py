"""A pool and its load, with what only studies vary."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eldr.simulate import setting
from eldr.simulate.population import Population
from eldr.simulate.workload import Window
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.pool.workload import Drift, Prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(setting.Setting):
    """A pool and its load.

    Attributes
    ----------
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

    drift: Drift | None = None
    cache: PrefixCache | None = None
    prefill: Prefill | None = None
    routers: int = 1
    lag: float = 0.25
    joins: tuple[tuple[int, float], ...] = ()
    restarts: float = math.inf

    def window(self, population: Population, step: float) -> Window:
        """Return what is measured where a step of the slowest engine takes so many seconds."""
        # the two-argument form: slots make this another class than the one that super() would look for
        window = super(Setting, self).window(population, step)
        if self.drift is None or window.warmup >= self.drift.at:
            return window
        end = self.drift.at + self.seconds
        return Window(self.drift.at, end, cooldown=end)

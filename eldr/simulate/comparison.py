"""Run each policy over the same arrivals of the same requests, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.policies import make_policy
from eldr.core.step_time import StepTime
from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import Samples
from eldr.simulate.active import ActiveExperts
from eldr.simulate.drafts import Drafts
from eldr.simulate.engine import Engine, Limits
from eldr.simulate.measures import Measures, Tally
from eldr.simulate.policies import Contender, Settings
from eldr.simulate.population import Population
from eldr.simulate.routing import Knowledge, Router
from eldr.simulate.run import serve
from eldr.simulate.workload import Window, make_workload

LIMITS = Limits()
_BATCH = 32.0


class Setting(NamedTuple):
    """A pool and its load.

    Attributes
    ----------
    step_time : StepTime
        Without drafts.
    speeds : tuple of float
        How many times as long each engine takes.
    rate : float
        Requests per second.
    seconds : float
        Requests that arrive in this time are measured, after a warm-up.
    settings : Settings
        Of the policies.
    """

    step_time: StepTime
    speeds: tuple[float, ...]
    rate: float
    seconds: float
    settings: Settings
    drafts: Drafts

    @property
    def step_times(self) -> list[StepTime]:
        """One per engine."""
        return [self.drafts.slowed(self.step_time).scaled(speed) for speed in self.speeds]


def usual_rate(requests: Population, step_times: Sequence[StepTime], drafts: Drafts) -> float:
    """Return the requests per second that keep a batch of 32 on each engine where they are placed at random: Little's law."""
    active = drafts.fed(requests).active(_BATCH, np.random.default_rng(0))
    stay = float(drafts.steps(requests).mean())
    return sum(_BATCH / (one.seconds(_BATCH, active) * stay) for one in step_times)


def compare(
    calibration: Samples, requests: Population, setting: Setting, contenders: Sequence[Contender], seed: int
) -> list[Measures]:
    """Return what each policy measures under one seed.

    Raises
    ------
    eldr.fit.samples.FitError
        If the requests for calibration cannot carry as many centroids as there are engines.
    ValueError
        If the load cannot be simulated.
    """
    drafts, step_times = setting.drafts, setting.step_times
    fed, steps = drafts.fed(requests), drafts.steps(requests)
    # until as many of the longest requests leave as come, with steps of the slowest engine at its fullest
    slowest = max(one.seconds(LIMITS.max_num_seqs, requests.n_experts) for one in step_times)
    warmup = slowest * max(2.0 * float(steps.mean()), float(steps.max()))
    # requests go on coming: the run is over when the last measured one has ended
    window = Window(warmup, warmup + setting.seconds, cooldown=warmup + setting.seconds)
    workload = make_workload(steps, rate=setting.rate, window=window, seed=seed, per_step=drafts.per_step)
    scores = None
    if any(contender.centroids for contender in contenders):
        settings = FitSettings(k=len(step_times), model="simulated", seed=seed)
        centroids = fit(calibration, settings, now=0.0).centroids
        scores = np.stack([centroids.similarities(one) for one in requests.prefill])
    measures = []
    for _, name, fitted, unions in contenders:
        known = Knowledge(requests, step_times, scores if fitted else None, unions, learns=not fitted)
        router = Router(make_policy(name, **setting.settings._asdict()), known, seed)
        engines = [Engine(one, LIMITS, ActiveExperts(fed.logs, fed.n_layers)) for one in step_times]
        measures.append(serve(engines, router, workload, Tally(window)).measures)
    return measures

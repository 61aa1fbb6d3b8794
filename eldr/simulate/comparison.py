"""Run each policy over the same arrivals of the same requests, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.core.policies import make_policy
from eldr.core.step_time import StepTime
from eldr.fit.samples import FitError
from eldr.simulate.centroids import fitted, similarities
from eldr.simulate.drafts import Drafts
from eldr.simulate.engine import Limits
from eldr.simulate.load import OperatingPoint, at_batch, at_rate
from eldr.simulate.measures import Measures
from eldr.simulate.policies import Contender, Settings
from eldr.simulate.population import Ints, Population, Traffic
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Window, lengths, make_workload

BATCH = 32.0
"""Mean batch of an engine where no rate is known."""
_LIMITS = Limits()
_DRAWS = 8
"""Batches that the experts of an even load are a mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pool and its load.

    Attributes
    ----------
    step_time : StepTime
        Without drafts.
    speeds : tuple of float
        How many times as long each engine takes.
    rate : float or None
        Requests per second; None: what keeps a mean batch of :data:`BATCH`.
    seconds : float
        Requests that arrive in this time are measured, after a warm-up.
    settings : Settings
        Of the policies.
    """

    step_time: StepTime
    speeds: tuple[float, ...]
    rate: float | None
    seconds: float
    settings: Settings
    drafts: Drafts


class Outcome(NamedTuple):
    """What one seed gives: requests per second, and the measures of each policy."""

    rate: float
    measures: list[Measures]


def compare(traffic: Traffic, setting: Setting, contenders: Sequence[Contender], seed: int) -> Outcome:
    """Run every policy under one seed.

    Raises
    ------
    ValueError
        If the requests for calibration cannot carry as many centroids as there are engines, or the load cannot be simulated.
    """
    requests, drafts = traffic.requests, setting.drafts
    slowed = drafts.slowed(setting.step_time)
    pool = Pool(tuple(map(slowed.scaled, setting.speeds)), _LIMITS, sampled=False, drafts=drafts)
    point = _operating_point(requests, setting, pool.step_times, seed)
    window = _window(requests, setting, point.step)
    workload = make_workload(
        requests, rate=point.rate, window=window, seed=seed, output_tokens=None, per_step=drafts.per_step
    )
    similarity = None
    if any(contender.centroids for contender in contenders):
        try:
            centroids = fitted(traffic.calibration, len(pool.step_times), seed)
        except FitError as error:  # does not travel between processes
            raise ValueError(f"{error.reason}: {error}") from None
        similarity = similarities(centroids, requests.prefill)
    measures = [
        simulate(
            pool,
            requests,
            workload,
            window,
            make_policy(contender.name, **setting.settings._asdict()),
            similarity=similarity if contender.centroids else None,
            unions=contender.unions,
            learns=contender.unions and not contender.centroids,
            seed=seed,
        ).measures
        for contender in contenders
    ]
    return Outcome(point.rate, measures)


def _operating_point(
    requests: Population, setting: Setting, step_times: Sequence[StepTime], seed: int
) -> OperatingPoint:
    """Return the even load that the rate, or the usual batch, stands for."""
    fed, rng = setting.drafts.fed(requests), np.random.default_rng([seed, 6])
    tokens = float(_steps(requests, setting).mean())

    def used(batch: float) -> float:
        return fed.active(batch, rng, _DRAWS)

    if setting.rate is None:
        return at_batch(step_times, used, tokens, BATCH)
    return at_rate(step_times, used, tokens, setting.rate, most=_LIMITS.max_num_seqs)


def _window(requests: Population, setting: Setting, step: float) -> Window:
    """Return what is measured where a step of the slowest engine takes so many seconds."""
    steps = _steps(requests, setting)
    # until as many of the longest requests leave as come
    warmup = step * max(2.0 * float(steps.mean()), float(steps.max()))
    end = warmup + setting.seconds
    return Window(warmup, end, cooldown=end)  # the run is over when the last measured request has ended


def _steps(requests: Population, setting: Setting) -> Ints:
    return lengths(requests, np.arange(len(requests)), None, setting.drafts.per_step)

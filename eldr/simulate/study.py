"""Many runs: settings x policies x seeds, where policies under one seed meet the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.simulate import centroids
from eldr.simulate.contenders import Contender, groups_by_share
from eldr.simulate.engine import Limits
from eldr.simulate.laws import scaled
from eldr.simulate.measures import Measures
from eldr.simulate.population import Population, Source
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Prefill, Window, make_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pool and its load; all that policies are compared under.

    Attributes
    ----------
    engines : int
    rate, batch : float or None
        Requests per second, or the mean batch of an engine that the rate should lead to: exactly one of them.
    law : StepTime
    speeds : tuple of float
        Times as long as the law says, of engine after engine, repeated.
    limits : Limits
    window : Window
    output_tokens : int or None
        None: as long as each request's answer was.
    sampled : bool
    drift_at : float
        Seconds; infinity for none.
    prefill : Prefill or None
    routers : int
    lag : float
        Seconds.
    """

    engines: int
    rate: float | None
    batch: float | None
    law: StepTime
    speeds: tuple[float, ...]
    limits: Limits
    window: Window
    output_tokens: int | None
    sampled: bool
    drift_at: float
    prefill: Prefill | None
    routers: int
    lag: float

    @property
    def laws(self) -> tuple[StepTime, ...]:
        """One per engine."""
        return tuple(scaled(self.law, self.speeds[at % len(self.speeds)]) for at in range(self.engines))

    def arrival_rate(self, population: Population, seed: int) -> float:
        """Return the rate, requests per second; by Little's law and randomly placed requests where a batch is wanted."""
        if self.rate is not None:
            return self.rate
        assert self.batch is not None  # noqa: S101 - one of both
        active = population.active(self.batch, np.random.default_rng([seed, 6]))
        tokens = self.output_tokens
        if tokens is None:
            assert population.output_tokens is not None  # noqa: S101 - checked with the workload
            tokens = population.output_tokens.mean()
        return sum(self.batch / (law.seconds(self.batch, active) * float(tokens)) for law in self.laws)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A seed's requests, and their cosines to centroids by number of engines and kind of centroids."""

    seed: int
    population: Population
    similarity: dict[tuple[int, str], Floats]


class Outcome(NamedTuple):
    """One run's place in the study and what it measured."""

    setting: int
    contender: int
    seed: int
    rate: float
    measures: Measures


class Progress(Protocol):
    """Told of every run that is over."""

    def __call__(self, done: int) -> None:
        """Take how many are."""


def prepare(source: Source, seed: int, engines: Sequence[int], contenders: Sequence[Contender]) -> Prepared:
    """Make a seed's requests and fit the centroids that the contenders look at.

    Raises
    ------
    eldr.fit.samples.FitError
        If the requests for calibration cannot carry so many centroids.
    """
    traffic = source.traffic(seed)
    kinds = {contender.centroids for contender in contenders}
    similarity: dict[tuple[int, str], Floats] = {}
    for k in sorted(set(engines)):
        if kinds == {None}:
            break
        balanced = centroids.fitted(traffic.calibration, k, seed)
        counts = traffic.requests.prefill
        similarity[k, "balanced"] = centroids.similarities(balanced, counts)
        if "vanilla" in kinds:
            plain = centroids.vanilla(balanced, traffic.calibration, seed)
            similarity[k, "vanilla"] = centroids.similarities(plain, counts)
    return Prepared(seed, traffic.requests, similarity)


def run_one(prepared: Prepared, setting: Setting, contender: Contender) -> tuple[float, Measures]:
    """Run one policy under one seed; the arrivals are those of every other policy.

    Returns
    -------
    rate : float
        Requests per second.
    measures : Measures
    """
    population, seed = prepared.population, prepared.seed
    rate = setting.arrival_rate(population, seed)
    workload = make_workload(
        population,
        rate=rate,
        window=setting.window,
        seed=seed,
        output_tokens=setting.output_tokens,
        drift_at=setting.drift_at,
        prefill=setting.prefill,
    )
    kind = contender.centroids
    done = simulate(
        Pool(setting.laws, setting.limits, setting.sampled, setting.routers, setting.lag),
        population,
        workload,
        setting.window,
        contender.policy(groups_by_share(population.labels, population.shares, setting.engines)),
        similarity=None if kind is None else prepared.similarity[setting.engines, kind],
        unions=contender.unions,
        seed=seed,
    )
    return rate, done.measures


@dataclass(frozen=True, slots=True)
class Study:
    """What to run: every contender in every setting under every seed."""

    source: Source
    settings: Sequence[Setting]
    contenders: Sequence[Contender]
    seeds: Sequence[int]

    @property
    def runs(self) -> int:
        """How many runs that makes."""
        return len(self.settings) * len(self.contenders) * len(self.seeds)

    def prepare(self, seed: int) -> Prepared:
        """Make one seed's requests and centroids."""
        engines = [setting.engines for setting in self.settings]
        return prepare(self.source, seed, engines, self.contenders)


def run_study(
    study: Study,
    *,
    executor: Executor | None = None,
    progress: Progress = lambda done: None,  # noqa: ARG005
) -> list[Outcome]:
    """Run everything.

    Parameters
    ----------
    study : Study
    executor : Executor, optional
        Runs beside each other; the outcomes are the same.
    progress : callable

    Returns
    -------
    list of Outcome
        By setting, contender and seed.
    """
    outcomes: list[Outcome] = []
    for outcome in _alone(study) if executor is None else _beside(study, executor):
        outcomes.append(outcome)
        progress(len(outcomes))
    return sorted(outcomes, key=lambda outcome: outcome[:3])


def _jobs(study: Study) -> list[tuple[int, int]]:
    return [(at, which) for at in range(len(study.settings)) for which in range(len(study.contenders))]


def _alone(study: Study) -> Iterator[Outcome]:
    for seed in study.seeds:
        prepared = study.prepare(seed)
        for at, which in _jobs(study):
            done = run_one(prepared, study.settings[at], study.contenders[which])
            yield Outcome(at, which, seed, *done)


def _beside(study: Study, executor: Executor) -> Iterator[Outcome]:
    waiting = [(seed, executor.submit(prepare_seed, study, seed)) for seed in study.seeds]
    running: dict[Future[tuple[float, Measures]], tuple[int, int, int]] = {}
    for seed, future in waiting:
        prepared = future.result()
        for at, which in _jobs(study):
            job = executor.submit(run_one, prepared, study.settings[at], study.contenders[which])
            running[job] = at, which, seed
    for ended in as_completed(running):
        yield Outcome(*running[ended], *ended.result())


def prepare_seed(study: Study, seed: int) -> Prepared:
    """Do :meth:`Study.prepare` in another process."""
    return study.prepare(seed)

"""Many runs: settings x policies x seeds, where policies under one seed meet the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from typing import Protocol

from eldr.centroids import CentroidSet
from eldr.core.domains import groups_by_share
from eldr.core.signature import Floats
from eldr.fit.samples import FitError
from eldr.simulate import centroids
from eldr.simulate.contenders import BALANCED, Contender
from eldr.simulate.measures import Measures
from eldr.simulate.outcome import Outcome
from eldr.simulate.population import Population, Source, Traffic
from eldr.simulate.run import Pool, simulate
from eldr.simulate.setting import Setting
from eldr.simulate.workload import Window, Workload, make_workload

Fitted = tuple[int, str]
"""Number of engines and kind of centroids."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What one seed has.

    Attributes
    ----------
    similarity : dict
        The requests' cosines to centroids, by number of engines and kind of centroids.
    """

    seed: int
    population: Population
    similarity: dict[Fitted, Floats]


class Progress(Protocol):
    """Callback for every run that is over."""

    def __call__(self, done: int) -> None:
        """Receive the number of finished runs."""


def prepare(source: Source, seed: int, engines: Sequence[int], contenders: Sequence[Contender]) -> Prepared:
    """Make a seed's requests and fit the centroids that the contenders look at.

    Raises
    ------
    ValueError
        If the requests for calibration cannot carry so many centroids.
    """
    traffic = source.traffic(seed)
    sets: dict[Fitted, CentroidSet] = {}
    if any(contender.centroids for contender in contenders):
        sets = {(k, BALANCED): fitted(traffic, k, seed) for k in sorted(set(engines))}
    counts = traffic.requests.prefill
    similarity = {key: centroids.similarities(one, counts) for key, one in sets.items()}
    return Prepared(seed, traffic.requests, similarity)


def fitted(traffic: Traffic, k: int, seed: int) -> CentroidSet:
    """Fit centroids for so many engines; ValueError if the requests for calibration cannot carry them."""
    try:
        return centroids.fitted(traffic.calibration, k, seed)
    except FitError as error:  # does not travel between processes
        raise ValueError(f"{error.reason}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What all policies meet in one setting: requests per second, what is measured, the requests."""

    rate: float
    window: Window
    workload: Workload


def meet(prepared: Prepared, setting: Setting) -> Load:
    """Draw the requests of one setting under one seed."""
    population, seed = prepared.population, prepared.seed
    point = setting.operating_point(population, seed)
    window = setting.window(population, point.step)
    workload = make_workload(
        population,
        rate=point.rate,
        window=window,
        seed=seed,
        output_tokens=setting.output_tokens,
        per_step=setting.drafts.per_step,
    )
    return Load(point.rate, window, workload)


def run_one(prepared: Prepared, setting: Setting, contender: Contender, load: Load) -> Measures:
    """Run one policy under one seed.

    Parameters
    ----------
    load : Load
        What :func:`meet` returns for this seed and setting.
    """
    population = prepared.population
    return simulate(
        Pool(setting.step_times, setting.limits, setting.sampled, setting.drafts),
        population,
        load.workload,
        load.window,
        contender.policy(groups_by_share(population.labels, population.shares, setting.engines)),
        similarity=prepared.similarity[setting.engines, contender.centroids] if contender.centroids else None,
        unions=contender.unions,
        learns=contender.learns,
        seed=prepared.seed,
    ).measures


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
        return prepare(self.source, seed, [setting.engines for setting in self.settings], self.contenders)


def run_study(
    study: Study,
    *,
    executor: Executor | None = None,
    progress: Progress = lambda done: None,  # noqa: ARG005
) -> list[Outcome]:
    """Run everything.

    Parameters
    ----------
    executor : Executor, optional
        Runs beside each other; the outcomes are the same.

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
        loads = [meet(prepared, setting) for setting in study.settings]
        for at, which in _jobs(study):
            done = run_one(prepared, study.settings[at], study.contenders[which], loads[at])
            yield Outcome(at, which, seed, loads[at].rate, done)


def _beside(study: Study, executor: Executor) -> Iterator[Outcome]:
    waiting = [(seed, executor.submit(study.prepare, seed)) for seed in study.seeds]
    running: dict[Future[Measures], tuple[int, int, int, float]] = {}
    for seed, future in waiting:
        prepared = future.result()
        loads = [meet(prepared, setting) for setting in study.settings]
        for at, which in _jobs(study):
            job = executor.submit(run_one, prepared, study.settings[at], study.contenders[which], loads[at])
            running[job] = at, which, seed, loads[at].rate
    for ended in as_completed(running):
        yield Outcome(*running[ended], ended.result())

"""Many runs: settings x policies x seeds, where policies under one seed meet the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from eldr.core.domains import groups_by_share
from eldr.core.signature import Floats
from eldr.fit.samples import FitError
from eldr.simulate import centroids
from eldr.simulate.contenders import Contender
from eldr.simulate.measures import Measures
from eldr.simulate.population import Population, Source
from eldr.simulate.run import Pool, simulate
from eldr.simulate.setting import Setting
from eldr.simulate.workload import make_workload


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
    ValueError
        If the requests for calibration cannot carry so many centroids.
    """
    traffic = source.traffic(seed)
    kinds = {contender.centroids for contender in contenders}
    similarity: dict[tuple[int, str], Floats] = {}
    for k in sorted(set(engines)):
        if kinds == {None}:
            break
        try:
            balanced = centroids.fitted(traffic.calibration, k, seed)
        except FitError as error:  # does not travel between processes
            raise ValueError(f"{error.reason}: {error}") from None
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
    point = setting.operating_point(population, seed)
    window = setting.window(population, point.step)
    workload = make_workload(
        population,
        rate=point.rate,
        window=window,
        seed=seed,
        output_tokens=setting.output_tokens,
        drift_at=setting.drift_at,
        prefill=setting.prefill,
        logged=setting.arrivals == "logged",
    )
    kind = contender.centroids
    done = simulate(
        Pool(setting.laws, setting.limits, setting.sampled, setting.routers, setting.lag),
        population,
        workload,
        window,
        contender.policy(groups_by_share(population.labels, population.shares, setting.engines)),
        similarity=None if kind is None else prepared.similarity[setting.engines, kind],
        unions=contender.unions,
        seed=seed,
    )
    return point.rate, done.measures


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

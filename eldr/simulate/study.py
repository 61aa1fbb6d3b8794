"""Many runs: settings x policies x seeds, where policies under one seed meet the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from typing import Protocol

from eldr.centroids import CentroidSet
from eldr.core.domains import groups_by_share
from eldr.core.signature import Floats
from eldr.fit.samples import FitError
from eldr.simulate import centroids
from eldr.simulate.contenders import Contender
from eldr.simulate.outcome import Done, Outcome
from eldr.simulate.population import Ints, Population, Source
from eldr.simulate.ranks import dealt, profiles
from eldr.simulate.replicas import Held, Replicas, place
from eldr.simulate.rolling import Refits, refits
from eldr.simulate.run import Pool, simulate
from eldr.simulate.setting import Setting
from eldr.simulate.workload import Window, Workload, make_workload, prefill_rate


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What one seed has.

    Attributes
    ----------
    seed : int
    population : Population
    similarity : dict
        The requests' cosines to centroids, by number of engines and kind of centroids.
    centroids : dict
        By the same.
    profiles : dict
        How often requests of each cluster use each expert, by number of engines.
    """

    seed: int
    population: Population
    similarity: dict[tuple[int, str], Floats]
    centroids: dict[tuple[int, str], CentroidSet] = field(default_factory=dict)
    profiles: dict[int, Floats] = field(default_factory=dict)


class Progress(Protocol):
    """Told of every run that is over."""

    def __call__(self, done: int) -> None:
        """Take how many are."""


def prepare(
    source: Source,
    seed: int,
    engines: Sequence[int],
    contenders: Sequence[Contender],
    *,
    profiled: bool = False,
) -> Prepared:
    """Make a seed's requests and fit the centroids that the contenders look at, or, if ``profiled``, the pool.

    Raises
    ------
    ValueError
        If the requests for calibration cannot carry so many centroids, or tell nothing of decode steps.
    """
    traffic = source.traffic(seed)
    kinds = {contender.centroids for contender in contenders}
    found: dict[tuple[int, str], CentroidSet] = {}
    for k in sorted(set(engines)):
        if kinds == {None} and not profiled:
            break
        try:
            balanced = centroids.fitted(traffic.calibration, k, seed)
        except FitError as error:  # does not travel between processes
            raise ValueError(f"{error.reason}: {error}") from None
        found[k, "balanced"] = balanced
        if "vanilla" in kinds:
            found[k, "vanilla"] = centroids.vanilla(balanced, traffic.calibration, seed)
    counts = traffic.requests.prefill
    similarity = {key: centroids.similarities(one, counts) for key, one in found.items()}
    used = {
        k: profiles(one, traffic.calibration)
        for (k, kind), one in found.items()
        if profiled and kind == "balanced"
    }
    return Prepared(seed, traffic.requests, similarity, found, used)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What all policies meet in one setting.

    Attributes
    ----------
    rate : float
        Requests per second.
    window : Window
    workload : Workload
    seen : Population
        The requests as routers see them.
    similarity : dict
        Their cosines to centroids, by number of engines and kind of centroids.
    orders : tuple or None
        How the experts of each engine are dealt out to its ranks.
    held : tuple or None
        Each engine's replicas.
    prefill_rate : float
        As in :class:`Done`.
    """

    rate: float
    window: Window
    workload: Workload
    seen: Population
    similarity: dict[tuple[int, str], Floats]
    orders: tuple[Ints, ...] | None
    held: tuple[Held, ...] | None
    prefill_rate: float


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
        cache=setting.cache,
        output_tokens=setting.output_tokens,
        drift_at=setting.drift_at,
        prefill=setting.prefill,
        logged=setting.arrivals == "logged",
    )
    seen, similarity = population, prepared.similarity
    if setting.cache is not None:
        seen = setting.cache.seen(population, seed)
    if seen is not population:
        similarity = {
            key: centroids.similarities(one, seen.prefill)
            for key, one in prepared.centroids.items()
            if key[0] == setting.engines
        }
    orders, held = None, None
    if setting.replicas is not None:
        held = _held(prepared, setting, setting.replicas, point.batch)
    elif setting.spread:
        orders = tuple(dealt(one, setting.ranks) for one in prepared.profiles[setting.engines])
    able = prefill_rate(setting.prefill, population, workload, setting.cache)
    return Load(point.rate, window, workload, seen, similarity, orders, held, able)


def _held(prepared: Prepared, setting: Setting, replicas: Replicas, batch: float) -> tuple[Held, ...]:
    """Place replicas: for the cluster of each engine, or alike on all."""

    def of(shares: Floats) -> Held:
        placed = place(shares, batch, setting.ranks, replicas.ratio, replicas.placing)
        return Held(placed, replicas.balance)

    if setting.spread:
        return tuple(of(shares) for shares in prepared.profiles[setting.engines])
    return (of(prepared.population.expert_shares),) * setting.engines


def run_one(prepared: Prepared, setting: Setting, contender: Contender, load: Load) -> Done:
    """Run one policy under one seed.

    Parameters
    ----------
    prepared : Prepared
    setting : Setting
    contender : Contender
    load : Load
        What :func:`meet` returns for this seed and setting.
    """
    population = prepared.population
    similarity, again = _knowledge(prepared, setting, contender, load)
    done = simulate(
        Pool(
            setting.laws,
            setting.limits,
            setting.sampled,
            setting.routers,
            setting.lag,
            setting.ranks,
            load.orders,
            load.held,
        ),
        population,
        load.workload,
        load.window,
        contender.policy(groups_by_share(population.labels, population.shares, setting.engines)),
        seen=load.seen,
        similarity=similarity,
        unions=contender.unions,
        refits=again,
        seed=prepared.seed,
    )
    return Done(load.rate, done.measures, load.prefill_rate)


def _knowledge(
    prepared: Prepared, setting: Setting, contender: Contender, load: Load
) -> tuple[Floats | None, Refits | None]:
    """Return the requests' cosines to centroids, or what these are re-fitted on."""
    if contender.centroids is None:
        return None, None
    key = setting.engines, contender.centroids
    if contender.refit is not None:
        every, window = contender.refit
        balanced = contender.centroids == "balanced"
        return None, refits(prepared.centroids[key], load.seen, every=every, window=window, balanced=balanced)
    return load.similarity[key], None


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
        profiled = any(setting.spread for setting in self.settings)
        return prepare(self.source, seed, engines, self.contenders, profiled=profiled)


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
        loads = [meet(prepared, setting) for setting in study.settings]
        for at, which in _jobs(study):
            done = run_one(prepared, study.settings[at], study.contenders[which], loads[at])
            yield Outcome(at, which, seed, *done)


def _beside(study: Study, executor: Executor) -> Iterator[Outcome]:
    waiting = [(seed, executor.submit(prepare_seed, study, seed)) for seed in study.seeds]
    running: dict[Future[Done], tuple[int, int, int]] = {}
    for seed, future in waiting:
        prepared = future.result()
        loads = [meet(prepared, setting) for setting in study.settings]
        for at, which in _jobs(study):
            job = executor.submit(run_one, prepared, study.settings[at], study.contenders[which], loads[at])
            running[job] = at, which, seed
    for ended in as_completed(running):
        yield Outcome(*running[ended], *ended.result())


def prepare_seed(study: Study, seed: int) -> Prepared:
    """Do :meth:`Study.prepare` in another process."""
    return study.prepare(seed)

"""Many runs: settings x policies x seeds, where policies under one seed meet the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from eldr.centroids import CentroidSet
from eldr.core.domains import groups_by_share
from eldr.core.signature import Floats
from eldr.fit.samples import FitError
from eldr.simulate.workload import Window, Workload
from eldr_lab.synthetic import centroids
from eldr_lab.synthetic.contenders import BALANCED, Contender
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.population import Population, Source, Traffic
from eldr_lab.synthetic.run import Pool, simulate
from eldr_lab.synthetic.setting import Setting

Fitted = tuple[int, str]
"""Number of engines and kind of centroids."""


class Placing(Protocol):
    """A contender, as far as its centroids are concerned."""

    @property
    def centroids(self) -> str | None:
        """Which ones it looks at, if any."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What one seed has.

    Attributes
    ----------
    similarity, centroids : dict
        The requests' cosines to centroids, and these, by number of engines and kind of centroids.
    """

    seed: int
    population: Population
    similarity: dict[Fitted, Floats]
    centroids: dict[Fitted, CentroidSet]


def prepare(source: Source, seed: int, engines: Sequence[int], contenders: Sequence[Placing]) -> Prepared:
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
    return Prepared(seed, traffic.requests, similarity, sets)


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
    return Load(point.rate, window, setting.workload(population, point.rate, window, seed))


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

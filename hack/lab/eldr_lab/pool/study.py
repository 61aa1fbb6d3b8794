"""One policy under one seed, in pools beyond what `eldr simulate` offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.domains import groups_by_share
from eldr.simulate.engine import Engine
from eldr_bench.proof import require
from eldr_lab.pool.contenders import Contender
from eldr_lab.pool.routers import Rolling, Router, exchange
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.witness import Witness, prove
from eldr_lab.synthetic import centroids, study
from eldr_lab.synthetic.active import active_experts
from eldr_lab.synthetic.contenders import BALANCED
from eldr_lab.synthetic.population import Population, Source
from eldr_lab.synthetic.routers import Exchange, Knowledge
from eldr_lab.synthetic.run import Run, serve
from eldr_lab.synthetic.study import Fitted, Load, fitted


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(study.Prepared):
    """What one seed has, and the centroids that studies refit.

    Attributes
    ----------
    centroids : dict
        By number of engines and kind of centroids.
    """

    centroids: dict[Fitted, CentroidSet] = field(default_factory=dict)


def prepare(source: Source, seed: int, engines: Sequence[int], contenders: Sequence[Contender]) -> Prepared:
    """Make a seed's requests and fit the centroids that the contenders look at.

    Raises
    ------
    ValueError
        If the requests for calibration cannot carry so many centroids.
    """
    traffic = source.traffic(seed)
    found: dict[Fitted, CentroidSet] = {}
    if any(contender.centroids for contender in contenders):
        found = {(k, BALANCED): fitted(traffic, k, seed) for k in sorted(set(engines))}
    similarity = {key: centroids.similarities(one, traffic.requests.prefill) for key, one in found.items()}
    return Prepared(seed, traffic.requests, similarity, found)


def meet(prepared: Prepared, setting: Setting) -> Load:
    """Draw the requests of one setting under one seed."""
    point = setting.operating_point(prepared.population, prepared.seed)
    window = setting.window(prepared.population, point.step)
    workload = setting.workload(prepared.population, point.rate, window, prepared.seed)
    return Load(point.rate, window, workload)


def run_whole(prepared: Prepared, setting: Setting, contender: Contender, load: Load) -> Run:
    """Run one policy under one seed, and prove that it did what its name says.

    Parameters
    ----------
    prepared : Prepared
    setting : Setting
    contender : Contender
    load : Load
        What :func:`meet` returns for this seed and setting.

    Raises
    ------
    Unproven
        If it did something else, see :func:`eldr_lab.pool.witness.prove`.
    """
    population, key = prepared.population, (setting.engines, BALANCED)
    similarity = prepared.similarity[key] if contender.centroids and contender.refit is None else None
    knowledge = Knowledge(
        alike(population) if contender.blind else population, setting.step_times, similarity,
        contender.unions, contender.learns,
    )  # fmt: skip
    groups = groups_by_share(population.labels, population.shares, setting.engines)
    witness = Witness(contender.policy(groups))
    routers = [
        Router(
            f"r{number}", witness, knowledge, prepared.seed + number, joins=setting.joins, restarts=setting.restarts,
            rolling=None if contender.refit is None else Rolling(prepared.centroids[key], population, contender.refit),
        )
        for number in range(setting.routers)
    ]  # fmt: skip
    engines = [
        Engine(law, setting.limits, active_experts(population, sampled=setting.sampled))
        for law in setting.step_times
    ]
    talk = Exchange(setting.lag, lambda: exchange(routers)) if setting.routers > 1 else None
    run = serve(engines, routers, load.workload, load.window, talk)
    prove(contender, witness, setting.step_times, load.workload, run, routers=setting.routers)
    if contender.refit and load.workload.ready[load.workload.measured].max() >= 4 * contender.refit:
        fits = [router.fits for router in routers]
        require(all(fits), f"{contender.text}: routers refitted their centroids {fits} times")
    return run


def alike(population: Population) -> Population:
    """Return requests of which routers see the mean prompt each time."""
    mean = np.rint(population.chances @ population.prefill.reshape(len(population), -1))
    prefill = np.broadcast_to(mean.reshape(population.prefill.shape[1:]), population.prefill.shape)
    tokens = max(1, round(float(population.chances @ population.prompt_tokens)))
    return replace(
        population,
        prefill=prefill.astype(population.prefill.dtype),
        prompt_tokens=np.full(len(population), tokens, dtype=np.int64),
    )

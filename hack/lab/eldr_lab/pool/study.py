"""One policy under one seed, in pools beyond what `eldr simulate` offers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from eldr.core.domains import groups_by_share
from eldr.simulate.engine import Engine
from eldr_bench.proof import require
from eldr_lab.pool.contenders import Contender
from eldr_lab.pool.routers import Rolling, Router, exchange
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.witness import Witness, prove
from eldr_lab.synthetic.active import active_experts
from eldr_lab.synthetic.contenders import BALANCED
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Exchange, Knowledge
from eldr_lab.synthetic.run import Run, serve
from eldr_lab.synthetic.study import Load, Prepared


def run_whole(prepared: Prepared, setting: Setting, contender: Contender, load: Load) -> Run:
    """Run one policy under one seed, and prove that it did what its name says.

    Parameters
    ----------
    prepared : Prepared
    setting : Setting
    contender : Contender
    load : Load
        What :func:`eldr_lab.synthetic.study.meet` returns for this seed and setting.

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

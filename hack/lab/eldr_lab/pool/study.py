"""One policy under one seed, in pools beyond what `eldr simulate` offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eldr.centroids import CentroidSet
from eldr.core.domains import groups_by_share
from eldr.core.signature import Floats
from eldr.simulate.engine import Engine
from eldr.simulate.population import Ints
from eldr_bench.proof import require
from eldr_lab.pool.active import expert_shares, on_ranks
from eldr_lab.pool.clusters import vanilla
from eldr_lab.pool.contenders import UNBALANCED, Contender
from eldr_lab.pool.ranks import dealt, profiles
from eldr_lab.pool.replicas import Held, Replicas, place
from eldr_lab.pool.rolling import Refits, refits
from eldr_lab.pool.routers import Churn, Router, exchange
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.witness import Witness, prove
from eldr_lab.pool.workload import make_workload
from eldr_lab.synthetic import centroids, study
from eldr_lab.synthetic.contenders import BALANCED
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.population import Population, Source
from eldr_lab.synthetic.routers import Exchange, Knowledge
from eldr_lab.synthetic.run import Run, serve
from eldr_lab.synthetic.study import Fitted, fitted


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(study.Prepared):
    """What one seed has, and what studies ask of it beyond the similarities.

    Attributes
    ----------
    centroids : dict
        By number of engines and kind of centroids.
    profiles : dict
        How often requests of each cluster use each expert, by number of engines.
    """

    centroids: dict[Fitted, CentroidSet] = field(default_factory=dict)
    profiles: dict[int, Floats] = field(default_factory=dict)


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
    found: dict[Fitted, CentroidSet] = {}
    if profiled or kinds != {None}:
        found = {(k, BALANCED): fitted(traffic, k, seed) for k in sorted(set(engines))}
    if UNBALANCED in kinds:
        plain = {k: vanilla(one, traffic.calibration, seed) for (k, _), one in found.items()}
        found |= {(k, UNBALANCED): one for k, one in plain.items()}
    counts = traffic.requests.prefill
    similarity = {key: centroids.similarities(one, counts) for key, one in found.items()}
    used = {
        k: profiles(one, traffic.calibration)
        for (k, kind), one in found.items()
        if profiled and kind == BALANCED
    }
    return Prepared(seed, traffic.requests, similarity, found, used)


@dataclass(frozen=True, slots=True, eq=False)
class Load(study.Load):
    """What all policies meet in one setting, as routers and engines see it.

    Attributes
    ----------
    seen : Population
        The requests as routers see them.
    similarity : dict
        Their cosines to centroids, by number of engines and kind of centroids.
    orders : sequence
        How the experts of each engine are dealt out to its ranks; None: in their own order.
    held : sequence
        Each engine's replicas, or None.
    """

    seen: Population
    similarity: dict[Fitted, Floats]
    orders: Sequence[Ints | None]
    held: Sequence[Held | None]


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
        drift=setting.drift,
        prefill=setting.prefill,
        cache=setting.cache,
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
    orders: Sequence[Ints | None] = [None] * setting.engines
    held: Sequence[Held | None] = [None] * setting.engines
    if setting.replicas is not None:
        held = _held(prepared, setting, setting.replicas, point.batch)
    elif setting.spread:
        orders = [dealt(one, setting.ranks) for one in prepared.profiles[setting.engines]]
    return Load(point.rate, window, workload, seen, similarity, orders, held)


def _held(prepared: Prepared, setting: Setting, replicas: Replicas, batch: float) -> list[Held]:
    """Place replicas: for the cluster of each engine, or alike on all."""

    def of(shares: Floats) -> Held:
        placed = place(shares, batch, setting.ranks, replicas.ratio, replicas.placing)
        return Held(placed, replicas.balance)

    if setting.spread:
        return [of(shares) for shares in prepared.profiles[setting.engines]]
    return [of(expert_shares(prepared.population))] * setting.engines


def run_one(prepared: Prepared, setting: Setting, contender: Contender, load: Load) -> Measures:
    """Return what one policy measures under one seed, see :func:`run_whole`."""
    return run_whole(prepared, setting, contender, load).measures


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
    population = prepared.population
    similarity, again = _knowledge(prepared, setting, contender, load)
    seen = alike(load.seen) if contender.blind else load.seen
    knowledge = Knowledge(seen, setting.known_step_times, similarity, contender.unions, contender.learns)
    groups = groups_by_share(population.labels, population.shares, setting.engines)
    witness = Witness(contender.policy(groups))
    churn = Churn(setting.joins, setting.restarts)
    routers = [
        Router(f"r{number}", witness, knowledge, prepared.seed + number, again, churn)
        for number in range(setting.routers)
    ]
    engines = [
        Engine(
            law,
            setting.limits,
            on_ranks(population, sampled=setting.sampled, ranks=setting.ranks, order=order, held=held),
        )
        for law, order, held in zip(setting.step_times, load.orders, load.held, strict=True)
    ]
    talk = Exchange(setting.lag, lambda: exchange(routers)) if setting.routers > 1 else None
    run = serve(engines, routers, load.workload, load.window, talk)
    prove(contender, witness, setting.known_step_times, load.workload, run, routers=setting.routers)
    _refitted(contender, routers, load)
    return run


def _refitted(contender: Contender, routers: Sequence[Router], load: Load) -> None:
    """End the program if a router that refits its centroids never did, though requests came for long enough."""
    if contender.refit is None or load.workload.ready[load.workload.measured].max() < 2 * contender.refit[1]:
        return
    fits = [router.fits for router in routers]
    require(all(fits), f"{contender.text}: routers refitted their centroids {fits} times")


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


def _knowledge(
    prepared: Prepared, setting: Setting, contender: Contender, load: Load
) -> tuple[Floats | None, Refits | None]:
    """Return the requests' cosines to centroids, or what these are refitted on."""
    if contender.centroids is None:
        return None, None
    key = setting.engines, contender.centroids
    if contender.refit is None:
        return load.similarity[key], None
    every, window = contender.refit
    balanced = contender.centroids == BALANCED
    return None, refits(prepared.centroids[key], load.seen, every=every, window=window, balanced=balanced)

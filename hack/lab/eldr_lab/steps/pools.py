"""One trace: the same requests through a pool of real engines under several policies, and through the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.simulate.engine import Limits
from eldr.simulate.workload import Window, Workload
from eldr_bench.proof import Unproven, require
from eldr_demo.compare import STATISTICS
from eldr_lab.pool.contenders import Contender, parse_contender
from eldr_lab.pool.witness import FEWEST, UNION, Witness, prove_basis
from eldr_lab.steps.engines import Engine
from eldr_lab.steps.machine import MAX_NUM_SEQS, N_EXPERTS, TOP_K
from eldr_lab.steps.start import Start
from eldr_lab.steps.traffic import Traffic
from eldr_lab.steps.world import Ran, Request, Served, World, run_side_by_side
from eldr_lab.synthetic.centroids import fitted, similarities
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.routers import Knowledge, Router
from eldr_lab.synthetic.run import Pool, simulate
from eldr_lab.synthetic.workload import make_workload

Json = dict[str, Any]

_WARMUP, _COOLDOWN = 1.0, 2.0
"""In stays of a request. A pool begins with as many in flight as it is to have, and ends with the last measured answer."""


class Setting(NamedTuple):
    """A pool and its load.

    Attributes
    ----------
    engines : int
    batch : int
        Requests per engine: about so many where they arrive at their times, exactly so many in the mean where they are held.
    requests : int
        Measured ones of each trace, about.
    holds : bool
        Whether the number in flight is held, so that a faster pool serves more; else requests arrive as a Poisson process.
    """

    engines: int
    batch: int
    requests: int
    holds: bool

    @property
    def in_flight(self) -> int:
        """Requests in flight in the pool, see ``batch``."""
        return self.batch * self.engines


class _Run(NamedTuple):
    """One policy's part of a trace."""

    contender: Contender
    witness: Witness
    world: World


class Trace:
    """One draw of arrivals, and of the centroids' fit.

    Parameters
    ----------
    traffic : Traffic
    setting : Setting
    start : Start
    seed : int
        Of both.
    """

    def __init__(self, traffic: Traffic, setting: Setting, start: Start, seed: int) -> None:
        self._traffic, self._setting, self._start, self._seed = traffic, setting, start, seed
        self._scores = similarities(
            fitted(traffic.calibration, setting.engines, seed), traffic.population.prefill
        )
        self._rate, self._window = load(traffic.population, setting, start.step)
        drawn = make_workload(
            traffic.population, rate=self._rate, window=self._window, seed=seed, output_tokens=None
        )
        self._workload = under_way(traffic.population, drawn, setting.in_flight, seed)
        self._numbers = np.flatnonzero(self._workload.measured).tolist()
        self._requests = [
            Request(float(at), int(record), traffic.prompts[record], int(tokens))
            for at, record, tokens in zip(
                self._workload.ready, self._workload.record, self._workload.tokens, strict=True
            )
        ]

    def run(
        self,
        engine: Engine,
        policies: Sequence[str],
        pace: Callable[[float], float],
        progress: Callable[[float], None],
    ) -> Json:
        """Run it on forks of an engine, a pool a policy; all pools advance together.

        Parameters
        ----------
        engine : Engine
            Idle; holds the KV of the traffic's prompts.
        policies : sequence of str
            As ``eldr simulate --policies`` takes them.
        pace : callable
            See :class:`World`.
        progress : callable
            Told the part that is done, 0 to 1.

        Returns
        -------
        dict
            ``rate`` (requests per second of the worlds' clocks; of no meaning where the number in flight is held), ``requests``; by policy
            ``policies`` (measures), ``reasons`` of its decisions and ``predicted`` (the simulator, given the model learned under the first policy, what each
            request alone did and the same arrivals; empty where the number in flight is held).

        Raises
        ------
        Unproven
            If a pool did something else than its policy names.
        """
        setting = self._setting
        last = self._window.end
        with engine.forks(setting.engines * len(policies)) as made:
            runs = {
                name: self._begin(name, made[which :: len(policies)], pace)
                for which, name in enumerate(policies)
            }
            run_side_by_side([run.world for run in runs.values()], lambda now: progress(min(1.0, now / last)))
        population, in_flight = self._traffic.population, setting.in_flight if setting.holds else None
        reasons = {
            name: prove(
                *run, self._requests, numbers=self._numbers, n_layers=population.n_layers, in_flight=in_flight
            )
            for name, run in runs.items()
        }
        base = next(iter(runs.values())).world.learn()
        assert base, "every world has learned a model"
        return {
            "rate": self._rate,
            "requests": len(self._numbers),
            "policies": {name: self._measured(run.world) for name, run in runs.items()},
            "reasons": reasons,
            "predicted": {} if setting.holds else {name: self._predict(run.contender, base) for name, run in runs.items()},
        }  # fmt: skip

    def _begin(self, name: str, engines: Sequence[Engine], pace: Callable[[float], float]) -> _Run:
        laws = [QWEN3_30B_MI300X.for_experts(N_EXPERTS)] * len(engines)
        contender = parse_contender(name)
        witness = Witness(contender.policy({}))
        scores = None if contender.centroids is None else self._scores
        knowledge = Knowledge(self._traffic.population, laws, scores, contender.unions, contender.learns)
        world = World(
            engines,
            Router(name, witness, knowledge, self._seed),
            laws,
            self._requests,
            pace,
            in_flight=self._setting.in_flight if self._setting.holds else None,
            known=self._start.known,
            counted=self._numbers,
        )
        return _Run(contender, witness, world)

    def _measured(self, world: World) -> dict[str, float]:
        begin, end = self._window.warmup, self._window.end
        if self._setting.holds:
            begin, end = (world.served[self._numbers[at]].at for at in (0, -1))
        return measures(
            world.served, self._workload.tokens.tolist(), world.steps, self._numbers, (begin, end)
        )

    def _predict(self, contender: Contender, law: StepTime) -> dict[str, float]:
        """Return what the simulator says of a policy under the same arrivals."""
        told = simulate(
            Pool((law,) * self._setting.engines, Limits(MAX_NUM_SEQS), sampled=True),
            self._traffic.population,
            self._workload,
            self._window,
            contender.policy({}),
            similarity=None if contender.centroids is None else self._scores,
            unions=contender.unions,
            learns=contender.learns,
            seed=self._seed,
        ).measures
        return {
            "TPOT mean": told.tpot_mean,
            "TPOT P50": told.tpot_p50,
            "TPOT P99": told.tpot_p99,
            "active experts": told.active_per_token,
        }


def load(population: Population, setting: Setting, step: float) -> tuple[float, Window]:
    """Return the rate at which steps of this length keep the wanted batch, and what is measured."""
    lengths = population.output_tokens
    assert lengths is not None
    stay = step * float(lengths.mean())
    rate, begin = setting.in_flight / stay, _WARMUP * stay
    return rate, Window(begin, begin + setting.requests / rate, cooldown=_COOLDOWN * stay)


def under_way(population: Population, workload: Workload, in_flight: int, seed: int) -> Workload:
    """Return a workload that begins with requests in flight, each at some place of its answer, as in a pool that has run for long."""
    rng = np.random.default_rng([seed, 4])
    lengths = population.output_tokens
    assert lengths is not None
    # whoever looks at a pool meets long answers more often, at any place alike
    record = rng.choice(len(lengths), in_flight, p=lengths / lengths.sum())
    left = np.ceil(rng.uniform(0.0, lengths[record])).astype(np.int64)
    before = replace(
        workload,
        arrival=np.zeros(in_flight),
        ready=np.zeros(in_flight),
        record=record,
        tokens=np.maximum(1, left),
        measured=np.zeros(in_flight, dtype=np.bool_),
    )
    fields = ("arrival", "ready", "record", "tokens", "measured")
    both: dict[str, Any] = {
        field: np.concatenate([getattr(part, field) for part in (before, workload)]) for field in fields
    }
    return replace(workload, **both)


def measures(
    served: Mapping[int, Served],
    tokens: Sequence[int],
    steps: Sequence[Ran],
    numbers: Sequence[int],
    window: tuple[float, float],
) -> dict[str, float]:
    """Return a value for each of :data:`eldr_lab.steps.machine.MEASURES`.

    Parameters
    ----------
    served : mapping of int to Served
        By the request's number.
    tokens : sequence of int
        Length of each request's answer, at least 2.
    steps : sequence of Ran
    numbers : sequence of int
        The requests that count.
    window : (float, float)
        Steps that begin in it count, seconds.
    """
    begin, end = window
    run = [step for step in steps if begin <= step.begin < end]
    times = np.array([(served[n].last - served[n].first) / (tokens[n] - 1) for n in numbers])
    made = sum(step.batch for step in run)
    return {f"TPOT {name}": float(statistic(times)) for name, statistic in STATISTICS.items()} | {
        "active experts": sum(step.batch * step.active for step in run) / made,
        "batch": made / len(run),
        "tokens/s": made / (end - begin),
    }


def prove(
    contender: Contender,
    witness: Witness,
    world: World,
    trace: Sequence[Request],
    *,
    numbers: Sequence[int],
    n_layers: int,
    in_flight: int | None,
) -> str:
    """Return what every decision of a world rested on.

    Parameters
    ----------
    contender : Contender
        The policy that its row names.
    witness : Witness
    world : World
        At its end.
    trace : sequence of Request
    numbers : sequence of int
        The requests that count.
    n_layers : int
    in_flight : int or None
        How many it had to hold in flight.

    Raises
    ------
    Unproven
        If it did something else than its row names.
    """
    name, served, basis = contender.text, world.served, prove_basis(contender, witness, routers=1)
    decisions = witness.reasons.total()
    require(decisions == len(served), f"{name}: {decisions} decisions placed {len(served)} requests")
    # unions alone may agree with load throughout; centroids that never matter are none
    differs = {FEWEST: witness.unlike == 0, UNION: True}.get(basis, witness.unlike > 0)
    require(differs, f"{name}: JSQ would have made {witness.unlike} decisions otherwise")
    require(world.learned, f"{name}: the step-time model of the router is none that it learned")
    _answered(name, world, trace, numbers, held=in_flight is not None)
    for step in world.steps:
        least, most = TOP_K, min(N_EXPERTS, TOP_K * step.batch)
        require(
            step.layers == n_layers and least <= step.active <= most,
            f"{name}: a step of {step.batch} told of {step.active:g} experts in {step.layers} layers",
        )
    if in_flight:
        held = _in_flight(world, numbers)
        require(held == {in_flight}, f"{name}: {held} in flight, not {in_flight}")
    return basis


def _answered(
    name: str, world: World, trace: Sequence[Request], numbers: Sequence[int], *, held: bool
) -> None:
    for number in numbers:
        one, asked = world.served.get(number), trace[number]
        if one is None or math.isnan(one.last):
            raise Unproven(f"{name}: request {number} was not answered")
        require(
            one.tokens == asked.tokens,
            f"{name}: request {number} got {one.tokens} tokens of {asked.tokens}",
        )
        require(held or one.at == asked.at, f"{name}: request {number} came at another time")


def _in_flight(world: World, numbers: Sequence[int]) -> set[int]:
    """Return how many were in flight whenever one of these requests came."""
    ends = np.sort([one.last for one in world.served.values() if not math.isnan(one.last)])
    starts = np.sort([one.at for one in world.served.values()])
    times = np.array([world.served[number].at for number in numbers])
    return set((np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")).tolist())

"""One comparison: the same requests through a pool of real engines under several policies, and through the simulator."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.simulate.centroids import fitted, similarities
from eldr.simulate.engine import Limits
from eldr.simulate.measures import Measures
from eldr.simulate.routing import Knowledge, Router
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Window, Workload, make_workload
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.steps.engines import Engine
from eldr_lab.steps.law import Law, Steps, fit
from eldr_lab.steps.machine import MAX_NUM_SEQS, N_EXPERTS
from eldr_lab.steps.outcome import Block, blocks
from eldr_lab.steps.traffic import Traffic
from eldr_lab.steps.world import Ran, Request, World, run_side_by_side

_PILOT_STEPS = 24
_PLANS = 8
"""Parts of a run whose steps are much alike."""


class Setting(NamedTuple):
    """A pool and its load.

    Attributes
    ----------
    engines : int
    batch : int
        Requests per engine: about so many where they arrive at their times, exactly so many in the mean where they are held.
    requests : int
        Measured ones of each trace.
    holds : bool
        Whether the number in flight is held, so that a faster pool serves more; else requests arrive as a Poisson process.
    """

    engines: int
    batch: int
    requests: int
    holds: bool


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What one comparison found.

    Attributes
    ----------
    setting : Setting
    parts : dict of str to list of Block
        By policy, of all traces.
    traces : int
    rate : float
        Requests per second of the worlds' clocks; of no meaning where the number in flight is held.
    law : Law
        Fitted to all steps.
    laws : dict of str to Law
        Fitted to the steps under each policy.
    learned : dict of str to (StepTime, float)
        What the router's code learned from means over the same steps, and the standard error of ``per_expert``.
    predicted : dict of str to list of Measures
        By policy, an element a trace: the simulator, given the law that was learned under the first one, what each request alone did and the same arrivals; empty where the number in flight
        is held.
    """

    setting: Setting
    parts: dict[str, list[Block]]
    traces: int
    rate: float
    law: Law
    laws: dict[str, Law]
    learned: dict[str, tuple[StepTime, float]]
    predicted: dict[str, list[Measures]]


class _Trace(NamedTuple):
    """A draw of arrivals."""

    seed: int
    workload: Workload


class Comparison:
    """One setting, its requests and what routers know of them.

    Parameters
    ----------
    traffic : Traffic
    setting : Setting
    policies : sequence of str
        As ``eldr simulate --policies`` takes them; the others are compared with the first.
    seeds : sequence of int
        Of arrivals, one a trace.
    """

    def __init__(
        self, traffic: Traffic, setting: Setting, policies: Sequence[str], seeds: Sequence[int]
    ) -> None:
        self._traffic, self._setting, self._policies, self._seeds = traffic, setting, policies, seeds
        centroids = fitted(traffic.calibration, setting.engines, seeds[0])
        self._scores = similarities(centroids, traffic.population.prefill)

    def run(self, engine: Engine, pace: Callable[[float], float], progress: Callable[[float], None]) -> Found:
        """Run it on forks of an engine.

        Parameters
        ----------
        engine : Engine
            Idle; holds the KV of the traffic's prompts.
        pace : callable
            See :class:`World`.
        progress : callable
            Told the part that is done, 0 to 1.
        """
        setting, names = self._setting, self._policies
        rate, window = self._load(pilot(engine, self._traffic, setting.batch, pace))
        end = window.end + window.cooldown
        parts: dict[str, list[Block]] = {name: [] for name in names}
        steps: dict[str, list[Sequence[Ran]]] = {name: [] for name in names}
        worlds: dict[str, World] = {}
        population = self._traffic.population
        traces = [
            _Trace(seed, make_workload(population, rate=rate, window=window, seed=seed, output_tokens=None))
            for seed in self._seeds
        ]
        for at, trace in enumerate(traces):
            first, share = at / len(traces), 1.0 / len(traces)
            with engine.forks(setting.engines * len(names)) as made:
                worlds = {
                    name: self._world(name, made[which :: len(names)], trace, pace, worlds.get(name))
                    for which, name in enumerate(names)
                }
                run_side_by_side(list(worlds.values()), _part(progress, first, share / end))
            for name, world in worlds.items():
                parts[name] += self._measured(world, trace.workload, window)
                steps[name].append(world.steps)
        learned: dict[str, tuple[StepTime, float]] = {}
        for name, world in worlds.items():
            law = world.learn()
            if law is None:
                raise ValueError(f"requests: {setting.requests} are too few to learn a law from their steps")
            learned[name] = law
        base = learned[names[0]][0]
        return Found(
            setting,
            parts,
            len(self._seeds),
            rate,
            fit(_steps([run for runs in steps.values() for run in runs])),
            {name: fit(_steps(runs)) for name, runs in steps.items()},
            learned,
            {} if setting.holds else {name: self._predict(name, traces, window, base) for name in names},
        )

    def _load(self, step: float) -> tuple[float, Window]:
        """Return the rate at which steps of this length keep the wanted batch, and what is measured."""
        lengths = self._traffic.population.output_tokens
        assert lengths is not None
        stay = step * float(lengths.mean())
        rate = self._setting.batch * self._setting.engines / stay
        begin = 2 * stay
        return rate, Window(begin, begin + self._setting.requests / rate, cooldown=stay)

    def _world(
        self,
        name: str,
        engines: Sequence[Engine],
        trace: _Trace,
        pace: Callable[[float], float],
        before: World | None,
    ) -> World:
        """Return a pool under one policy, whose router remembers how long steps took in an earlier trace."""
        seed, workload = trace
        requests = [
            Request(float(at), int(record), self._traffic.prompts[record], int(tokens))
            for at, record, tokens in zip(workload.ready, workload.record, workload.tokens, strict=True)
        ]
        laws = [QWEN3_30B_MI300X.for_experts(N_EXPERTS)] * len(engines)
        contender = parse_contender(name)
        scores = None if contender.centroids is None else self._scores
        knowledge = Knowledge(self._traffic.population, laws, scores, contender.unions)
        router = Router(name, contender.policy({}), knowledge, seed)
        in_flight = self._setting.batch * len(engines) if self._setting.holds else None
        windows = None if before is None else before.windows
        return World(engines, router, laws, requests, pace, in_flight=in_flight, windows=windows)

    def _measured(self, world: World, workload: Workload, window: Window) -> list[Block]:
        numbers = np.flatnonzero(workload.measured).tolist()
        begin, end = window.warmup, window.end
        if self._setting.holds:
            first, last = numbers[0], numbers[-1]
            begin, end = world.served[first].at, world.served[last].at
        return blocks(world.served, workload.tokens.tolist(), world.steps, numbers, (begin, end))

    def _predict(self, name: str, traces: Sequence[_Trace], window: Window, law: StepTime) -> list[Measures]:
        """Return what the simulator says of a policy under the same arrivals."""
        contender = parse_contender(name)
        return [
            simulate(
                Pool((law,) * self._setting.engines, Limits(MAX_NUM_SEQS), sampled=True),
                self._traffic.population,
                workload,
                window,
                contender.policy({}),
                similarity=None if contender.centroids is None else self._scores,
                unions=contender.unions,
                seed=seed,
            ).measures
            for seed, workload in traces
        ]


def _part(progress: Callable[[float], None], first: float, scale: float) -> Callable[[float], None]:
    return lambda now: progress(min(1.0, first + scale * now))


def pilot(engine: Engine, traffic: Traffic, batch: int, pace: Callable[[float], float]) -> float:
    """Return the seconds of a step with so many requests of all kinds."""
    with engine.forks(1) as (fork,):
        for at in range(batch):
            fork.add(str(at), traffic.prompts[at], _PILOT_STEPS, at)
        return statistics.median(pace(fork.step().seconds) for _ in range(_PILOT_STEPS))


def _steps(runs: Sequence[Sequence[Ran]]) -> Steps:
    """Return all steps of several runs, those of one run and time together as one plan."""
    rows = [
        (ran.seconds, ran.batch, ran.active, at * _PLANS + part)
        for at, steps in enumerate(runs)
        for part, some in enumerate(np.array_split(np.arange(len(steps)), _PLANS))
        for ran in (steps[i] for i in some.tolist())
    ]
    seconds, batch, active, plan = (np.array(column) for column in zip(*rows, strict=True))
    return Steps(seconds, batch.astype(np.float64), active, plan, ["placed"] * (int(plan.max()) + 1))

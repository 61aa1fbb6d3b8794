"""One comparison: the same requests through a pool of real engines under several policies, and through the simulator."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.core.step_time import QWEN3_30B_MI300X, StepTime
from eldr.simulate.centroids import fitted, similarities
from eldr.simulate.contenders import parse_contender
from eldr.simulate.engine import Limits
from eldr.simulate.measures import Measures
from eldr.simulate.routing import Knowledge, Router
from eldr.simulate.run import Pool, simulate
from eldr.simulate.workload import Window, Workload, make_workload
from eldr_steps.engines import Engine
from eldr_steps.law import Law, Steps, fit
from eldr_steps.machine import MAX_NUM_SEQS, N_EXPERTS
from eldr_steps.outcome import BLOCKS, Block, blocks
from eldr_steps.traffic import Traffic
from eldr_steps.world import Request, World, run_side_by_side

_PILOT_STEPS = 24


class Setting(NamedTuple):
    """A pool and its load.

    Attributes
    ----------
    engines : int
    batch : int
        Requests per engine: about so many where they arrive at their times, exactly so many in the mean where they are held.
    requests : int
        Measured ones.
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
        By policy.
    rate : float
        Requests per second of the worlds' clocks; of no meaning where the number in flight is held.
    law : Law
        Fitted to all steps.
    learned : (StepTime, float)
        What the router's code learned from means over steps under the first policy, and the standard error of ``per_expert``.
    predicted : dict of str to Measures
        By policy: the simulator, given that law, what each request alone did and the same arrivals; empty where the number in flight
        is held.
    """

    setting: Setting
    parts: dict[str, list[Block]]
    rate: float
    law: Law
    learned: tuple[StepTime, float]
    predicted: dict[str, Measures]


class Comparison:
    """One setting, its requests and what routers know of them.

    Parameters
    ----------
    traffic : Traffic
    setting : Setting
    policies : sequence of str
        As ``eldr simulate --policies`` takes them; the others are compared with the first.
    seed : int
        Of arrivals.
    """

    def __init__(self, traffic: Traffic, setting: Setting, policies: Sequence[str], seed: int) -> None:
        self._traffic, self._setting, self._policies, self._seed = traffic, setting, policies, seed
        centroids = fitted(traffic.calibration, setting.engines, seed)
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
        setting = self._setting
        rate, window = self._load(pilot(engine, self._traffic, setting.batch, pace))
        workload = make_workload(
            self._traffic.population, rate=rate, window=window, seed=self._seed, output_tokens=None
        )
        trace = [
            Request(float(at), int(record), self._traffic.prompts[record], int(tokens))
            for at, record, tokens in zip(workload.ready, workload.record, workload.tokens, strict=True)
        ]
        worlds: dict[str, World] = {}
        with engine.forks(setting.engines * len(self._policies)) as made:
            for at, name in enumerate(self._policies):
                worlds[name] = self._world(name, made[at :: len(self._policies)], trace, pace)
            end = window.end + window.cooldown
            run_side_by_side(list(worlds.values()), lambda now: progress(min(1.0, now / end)))
        learned = worlds[self._policies[0]].learn()
        if learned is None:
            raise ValueError(f"requests: {setting.requests} are too few to learn a law from their steps")
        return Found(
            setting,
            {name: self._measured(world, workload, window) for name, world in worlds.items()},
            rate,
            fit(_steps(list(worlds.values()))),
            learned,
            {}
            if setting.holds
            else {name: self._predict(name, workload, window, learned[0]) for name in self._policies},
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
        self, name: str, engines: Sequence[Engine], trace: Sequence[Request], pace: Callable[[float], float]
    ) -> World:
        laws = [QWEN3_30B_MI300X.for_experts(N_EXPERTS)] * len(engines)
        contender = parse_contender(name)
        scores = None if contender.centroids is None else self._scores
        knowledge = Knowledge(self._traffic.population, laws, scores, contender.unions)
        router = Router(name, contender.policy({}), knowledge, self._seed)
        in_flight = self._setting.batch * len(engines) if self._setting.holds else None
        return World(engines, router, laws, trace, pace, in_flight=in_flight)

    def _measured(self, world: World, workload: Workload, window: Window) -> list[Block]:
        numbers = np.flatnonzero(workload.measured).tolist()
        begin, end = window.warmup, window.end
        if self._setting.holds:
            first, last = numbers[0], numbers[-1]
            begin, end = world.served[first].at, world.served[last].at
        return blocks(world.served, workload.tokens.tolist(), world.steps, numbers, (begin, end))

    def _predict(self, name: str, workload: Workload, window: Window, law: StepTime) -> Measures:
        """Return what the simulator says of a policy under the same arrivals."""
        contender = parse_contender(name)
        return simulate(
            Pool((law,) * self._setting.engines, Limits(MAX_NUM_SEQS), sampled=True),
            self._traffic.population,
            workload,
            window,
            contender.policy({}),
            similarity=None if contender.centroids is None else self._scores,
            unions=contender.unions,
            seed=self._seed,
        ).measures


def pilot(engine: Engine, traffic: Traffic, batch: int, pace: Callable[[float], float]) -> float:
    """Return the seconds of a step with so many requests of all kinds."""
    with engine.forks(1) as (fork,):
        for at in range(batch):
            fork.add(str(at), traffic.prompts[at], _PILOT_STEPS, at)
        return statistics.median(pace(fork.step().seconds) for _ in range(_PILOT_STEPS))


def _steps(worlds: Sequence[World]) -> Steps:
    """Return all steps, those of one world and time together as one plan."""
    rows = [
        (ran.seconds, ran.batch, ran.active, at * BLOCKS + part)
        for at, world in enumerate(worlds)
        for part, some in enumerate(np.array_split(np.arange(len(world.steps)), BLOCKS))
        for ran in (world.steps[i] for i in some.tolist())
    ]
    seconds, batch, active, plan = (np.array(column) for column in zip(*rows, strict=True))
    return Steps(seconds, batch.astype(np.float64), active, plan, ["placed"] * (int(plan.max()) + 1))

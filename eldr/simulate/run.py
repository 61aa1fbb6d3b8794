"""One run: a workload, a policy, a pool."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.core.policy import Policy
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.simulate.active import active_experts
from eldr.simulate.drafts import NO_DRAFTS, Drafts
from eldr.simulate.engine import Engine, Limits, Member
from eldr.simulate.measures import Measures, Tally
from eldr.simulate.population import Ints, Population
from eldr.simulate.routing import Knowledge, Placement, Router
from eldr.simulate.workload import Times, Window, Workload

_ROUTERS_TALK = -1  # in place of an engine's number


@dataclass(frozen=True, slots=True)
class Pool:
    """Decode engines.

    Attributes
    ----------
    step_times : tuple of StepTime
        One per engine.
    sampled : bool
        Whether the active experts are those of single steps, or expected ones.
    """

    step_times: tuple[StepTime, ...]
    limits: Limits
    sampled: bool
    drafts: Drafts = NO_DRAFTS


class Exchange(NamedTuple):
    """Periodic exchange between routers: each publishes what it placed."""

    every: float
    publish: Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happened.

    Attributes
    ----------
    worker : ndarray of int, shape (n,)
        Engine of each request of the workload.
    joined, first, end : ndarray of float, shape (n,)
        When each joined a batch, and when its first and last token came, seconds; NaN after the last measured one ended.
    left : list of int
        In flight per engine when it was over, as routers count.
    """

    measures: Measures
    worker: Ints
    joined: Times
    first: Times
    end: Times
    left: list[int]


def simulate(
    pool: Pool,
    population: Population,
    workload: Workload,
    window: Window,
    policy: Policy,
    *,
    similarity: Floats | None = None,
    unions: bool = False,
    learns: bool = False,
    seed: int = 0,
) -> Run:
    """Simulate one router before a pool until every measured request has ended.

    Parameters
    ----------
    similarity : ndarray of float32, shape (n_records, n_engines), optional
        For policies that look at centroids.
    unions : bool
        Whether the policy looks at expected unions.
    learns : bool
        Whether the router learns the policy's prior while it places.
    seed : int
        Of the policy's own choices.
    """
    router = Router("r0", policy, Knowledge(population, pool.step_times, similarity, unions, learns), seed)
    fed = pool.drafts.fed(population)  # of which routers know single tokens
    engines = [
        Engine(step_time, pool.limits, active_experts(fed, sampled=pool.sampled))
        for step_time in pool.step_times
    ]
    return serve(engines, [router], workload, window)


def serve(
    engines: Sequence[Engine],
    routers: Sequence[Router],
    workload: Workload,
    window: Window,
    exchange: Exchange | None = None,
) -> Run:
    """Let routers, in turn, send a workload to engines until every measured request has ended."""
    return _Simulation(engines, routers, workload, window, exchange).run()


class _Simulation:
    """The event loop."""

    def __init__(
        self,
        engines: Sequence[Engine],
        routers: Sequence[Router],
        workload: Workload,
        window: Window,
        exchange: Exchange | None,
    ) -> None:
        n = len(workload)
        self._engines, self._routers, self._workload, self._exchange = engines, routers, workload, exchange
        self._in_flight = [0] * len(self._engines)
        self._tally = Tally(window)
        self._placements: dict[int, Placement] = {}
        self._worker = np.full(n, -1, dtype=np.int64)
        self._joined, self._first, self._end = (np.full(n, math.nan) for _ in range(3))
        # (time, engine, number of the plan): a plan that was changed meanwhile has another number
        self._due: list[tuple[float, int, int]] = []
        self._plans = [0] * len(self._engines)
        self._records, self._tokens = workload.record.tolist(), workload.tokens.tolist()
        self._measured = workload.measured.tolist()
        self._left = int(workload.measured.sum())

    def run(self) -> Run:
        """Run it."""
        ready = [*self._workload.ready.tolist(), math.inf]
        if self._exchange is not None:
            heapq.heappush(self._due, (self._exchange.every, _ROUTERS_TALK, 0))
        number = 0
        while self._left:
            if ready[number] <= (self._due[0][0] if self._due else math.inf):
                self._place(number, ready[number])
                number += 1
                continue
            now, engine, plan = heapq.heappop(self._due)
            if self._exchange is not None and engine == _ROUTERS_TALK:
                self._exchange.publish()
                heapq.heappush(self._due, (now + self._exchange.every, _ROUTERS_TALK, 0))
            elif plan == self._plans[engine]:
                self._advance(engine, now)
        return Run(
            self._tally.measures(self._workload, self._first, self._end),
            self._worker,
            self._joined,
            self._first,
            self._end,
            [sum(column) for column in zip(*(router.in_flight for router in self._routers), strict=True)],
        )

    def _place(self, number: int, now: float) -> None:
        record = self._records[number]
        placement = self._routers[number % len(self._routers)].place(record, now)
        worker = placement.worker
        engine = self._engines[worker]
        waits = not engine.has_room
        self._placements[number] = placement
        self._worker[number] = worker
        self._in_flight[worker] += 1
        if self._measured[number]:
            self._tally.placed(self._in_flight, placement.candidates, waits=waits)
        due = engine.add(Member(number, record, self._tokens[number]), now)
        if due is not None:
            self._plan(worker, due)

    def _advance(self, worker: int, now: float) -> None:
        engine = self._engines[worker]
        ended, joined, ran = engine.advance(now)
        if ran is not None:
            self._tally.steps(ran)
        for member in ended:
            number = member.number
            self._end[number] = now
            self._in_flight[worker] -= 1
            self._routers[number % len(self._routers)].ended(self._placements.pop(number))
            self._left -= self._measured[number]
        for member in joined:
            self._joined[member.number] = now
            self._first[member.number] = engine.first_end
        if engine.due is not None:
            self._plan(worker, engine.due)

    def _plan(self, worker: int, due: float) -> None:
        self._plans[worker] += 1
        heapq.heappush(self._due, (due, worker, self._plans[worker]))

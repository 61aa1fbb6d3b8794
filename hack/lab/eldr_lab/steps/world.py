"""Pools of real engines that take turns on one core, each with a clock of its own.

A world is a pool under one policy. One engine computes at a time, and its clock advances by what its steps took, as if it had a machine
to itself; worlds advance together, so that the machine's moods meet all policies alike.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from eldr.core.step_time import StepTime
from eldr.core.step_time_fit import Window, learn
from eldr.simulate.routing import Placement
from eldr_lab.steps.law import mean_window
from eldr_lab.steps.machine import Step
from eldr_lab.synthetic.routers import Router

_LEARN_EVERY = 2.0
"""Seconds of a world's clock; the router asks its engines every ten, but here a trace is over in a minute."""
_LEAST_STEPS = 10
_LEAST_WINDOWS = 6


class Steps(Protocol):
    """An engine."""

    def add(self, name: str, prompt: list[int], tokens: int, seed: int) -> None:
        """Take a request into its next step."""

    def step(self) -> Step:
        """Run a step."""


class Request(NamedTuple):
    """A request of a trace.

    Attributes
    ----------
    at : float
        When it arrives, seconds; meaningless where the number in flight is held.
    record : int
        Which request of the population it is.
    prompt : list of int
    tokens : int
    """

    at: float
    record: int
    prompt: list[int]
    tokens: int


class Ran(NamedTuple):
    """A step that was run: its begin and length by the world's clock (seconds), requests, experts (mean over layers)."""

    engine: int
    begin: float
    seconds: float
    batch: int
    active: float
    layers: int


@dataclass(slots=True)
class Served:
    """When a request was placed, when its first and last token came, by the world's clock (NaN before), and how many came."""

    engine: int
    at: float
    first: float = math.nan
    last: float = math.nan
    tokens: int = 0


@dataclass(slots=True)
class _Slot:
    """One engine's part of a world."""

    steps: Steps
    waiting: list[tuple[int, Request]] = field(default_factory=list)
    running: int = 0
    result: Step | None = None
    told: list[Ran] = field(default_factory=list)
    """Steps since the last window."""
    windows: list[Window] = field(default_factory=list)


class World:
    """A pool under one policy, with one trace.

    Parameters
    ----------
    engines : sequence of Steps
    router : Router
    laws : list of StepTime
        What the router believes of each engine; replaced by what is learned from their steps.
    trace : sequence of Request
        Ascending in time.
    pace : callable
        Turns the seconds that a step took into seconds of the world's clock.
    in_flight : int, optional
        Hold so many in flight: requests arrive when others end. None: they arrive at their times.
    known : sequence of Window
        What the router knows of such engines' steps beforehand.
    counted : collection of int, optional
        Numbers of the requests whose ends end the world; None: all.
    """

    def __init__(
        self,
        engines: Sequence[Steps],
        router: Router,
        laws: list[StepTime],
        trace: Sequence[Request],
        pace: Callable[[float], float],
        *,
        in_flight: int | None = None,
        known: Sequence[Window] = (),
        counted: Collection[int] | None = None,
    ) -> None:
        self._slots = [_Slot(engine) for engine in engines]
        self._router, self._laws, self._pace = router, laws, pace
        self._default, self._known = laws[0], known
        self._open = set(range(len(trace)) if counted is None else counted)
        self._learn_at = _LEARN_EVERY
        self._left = deque(enumerate(trace))
        self._holds = in_flight
        self._due: list[tuple[float, int]] = []
        self._placements: dict[int, Placement] = {}
        self.steps: list[Ran] = []
        self.served: dict[int, Served] = {}
        self.learn()
        for _ in range(in_flight or 0):
            self._place(0.0)
        self._begin(0.0)

    @property
    def learned(self) -> bool:
        """Whether the router's laws are learned from steps, not what it believed at first."""
        return self._default not in self._laws

    @property
    def next(self) -> float:
        """When something happens next, by the world's clock; infinity when all is over."""
        if not self._open:
            return math.inf
        return min(self._next_arrival, self._due[0][0] if self._due else math.inf)

    @property
    def _next_arrival(self) -> float:
        return self._left[0][1].at if self._left and self._holds is None else math.inf

    def advance(self) -> None:
        """Let the next thing happen: a request arrives, or a step ends and another begins."""
        now = self.next
        if self._due and self._due[0][0] == now:
            ended = self._finish(heapq.heappop(self._due)[1], now)
            for _ in range(ended if self._holds is not None else 0):
                self._place(now)
        else:
            self._place(now)
        self._begin(now)

    def _place(self, now: float) -> None:
        if not self._left:
            return
        number, request = self._left.popleft()
        placement = self._router.place(request.record, now)
        self._placements[number] = placement
        self.served[number] = Served(placement.engine, now)
        self._slots[placement.engine].waiting.append((number, request))

    def _begin(self, now: float) -> None:
        """Begin a step wherever none runs and there is something to do."""
        for which, slot in enumerate(self._slots):
            if slot.result is not None or not (slot.running or slot.waiting):
                continue
            for number, request in slot.waiting:
                slot.steps.add(str(number), request.prompt, request.tokens, seed=number)
                slot.running += 1
            slot.waiting.clear()
            slot.result = result = slot.steps.step()
            if result.rows != len(result.names):
                raise ValueError(
                    f"a step of {len(result.names)} requests computed {result.rows} tokens: a prompt's KV was lost"
                )
            ran = Ran(which, now, self._pace(result.seconds), result.rows, result.active, len(result.experts))
            self.steps.append(ran)
            slot.told.append(ran)
            heapq.heappush(self._due, (now + ran.seconds, which))

    def _finish(self, which: int, now: float) -> int:
        """End an engine's step; return how many requests ended with it."""
        slot = self._slots[which]
        result, slot.result = slot.result, None
        if result is None:
            raise ValueError(f"engine {which} ran no step")
        for name in result.names:
            served = self.served[int(name)]
            served.tokens += 1
            if math.isnan(served.first):
                served.first = now
        if now >= self._learn_at:
            self._learn_at = now + _LEARN_EVERY
            self.learn()
        for name in result.ended:
            slot.running -= 1
            self.served[int(name)].last = now
            self._open.discard(int(name))
            self._router.ended(self._placements.pop(int(name)), now)
        return len(result.ended)

    def learn(self) -> StepTime | None:
        """Learn the engines' step-time model as the router does, from means over their latest steps.

        Returns
        -------
        StepTime or None
            The pool's; None while too little is known.
        """
        for slot in self._slots:
            if len(slot.told) >= _LEAST_STEPS:
                told = zip(*((ran.seconds, ran.active, ran.batch) for ran in slot.told), strict=True)
                slot.windows.append(mean_window(*told))
                slot.told.clear()
        told_by = {str(at): slot.windows for at, slot in enumerate(self._slots)}
        learned = learn({"known": self._known, **told_by}, self._default)
        if learned.windows < _LEAST_WINDOWS:
            return None
        self._laws[:] = [learned.step_times[str(at)] for at in range(len(self._slots))]
        return learned.pool


def run_side_by_side(worlds: Sequence[World], progress: Callable[[float], None] = lambda now: None) -> None:  # noqa: ARG005
    """Run all worlds to their ends, whichever is behind first."""
    while (now := min(world.next for world in worlds)) < math.inf:
        min(worlds, key=lambda world: world.next).advance()
        progress(now)

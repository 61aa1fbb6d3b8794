"""A router that knows the kinds of requests, and several routers before one pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.policy import Choice, Policy, Situation
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.simulate import routing
from eldr.simulate.routing import Placement
from eldr_lab.synthetic.population import Population


class Knowledge(NamedTuple):
    """What every router of a pool knows from the start, see :class:`eldr.simulate.routing.Knowledge`."""

    population: Population
    step_times: Sequence[StepTime]
    similarity: Floats | None
    unions: bool
    learns: bool = False


class _Labelled:
    """A policy that is given the kind of each request."""

    def __init__(self, base: Policy) -> None:
        self.name = base.name
        self.label: str | None = None
        self._base = base

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose an engine."""
        return self._base.choose(situation._replace(label=self.label), rng)


class Router(routing.Router):
    """One router, whose policy may go by labels."""

    def __init__(self, name: str, policy: Policy, knowledge: Knowledge, seed: int) -> None:
        self._labelled = _Labelled(policy)
        super().__init__(self._labelled, routing.Knowledge(*knowledge), seed)
        self.name = name
        population = knowledge.population
        self._labels = [population.labels[label] for label in population.label.tolist()]

    @property
    def in_flight(self) -> Sequence[int]:
        """Requests in flight at each engine that this router placed."""
        return self._own

    def place(self, record: int, now: float) -> Placement:
        """Choose an engine for a request, and count it there."""
        self._labelled.label = self._labels[record]
        return super().place(record, now)


class Exchange(NamedTuple):
    """Periodic exchange between routers: each publishes what it placed."""

    every: float
    publish: Callable[[], None]


class InTurn(routing.Router):
    """Several routers: requests go to them in turn, and they exchange what they placed."""

    def __init__(self, routers: Sequence[Router], exchange: Exchange | None) -> None:
        self._routers, self._exchange = routers, exchange
        self._next = 0
        self._due = 0.0 if exchange is None else exchange.every
        self._placed: dict[int, Router] = {}

    def place(self, record: int, now: float) -> Placement:
        """Let the next router place a request."""
        self._talk(now)
        router = self._routers[self._next % len(self._routers)]
        self._next += 1
        placement = router.place(record, now)
        self._placed[id(placement)] = router
        return placement

    def ended(self, placement: Placement, now: float) -> None:
        """Count a request no longer."""
        self._talk(now)
        self._placed.pop(id(placement)).ended(placement, now)

    def _talk(self, now: float) -> None:
        while self._exchange is not None and self._due <= now:
            self._exchange.publish()
            self._due += self._exchange.every

"""One run of a pool whose KV caches may be full: requests that a router refuses come again."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.policy import Choice, Policy, Situation
from eldr.simulate.population import Ints
from eldr.simulate.routing import Knowledge, Placement, Router
from eldr.simulate.workload import Times
from eldr_lab.pool.kv_engine import KvEngine, Request
from eldr_router.engines.contexts import Answers, Cache, Contexts
from eldr_router.http.errors import RouterError

_POLL, _RETRY = 10.0, 1.0
"""Seconds between a router's looks at an engine's metrics; seconds that ``Retry-After`` says."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in the order in which they come, each prompt computed.

    Attributes
    ----------
    ready : ndarray of float, shape (n,)
        Seconds.
    record, prompt, tokens : ndarray of int, shape (n,)
        Which one of the population, tokens of the prompt, decode steps.
    measured : ndarray of bool, shape (n,)
    """

    ready: Times
    record: Ints
    prompt: Ints
    tokens: Ints
    measured: npt.NDArray[np.bool_]


class Seeing:
    """A policy that sees the tokens on engines, if it looks.

    Parameters
    ----------
    token_cost : float
        Sequences that a token counts as where policies compare loads; 0 where nobody knows.
    """

    def __init__(self, base: Policy, *, looks: bool, token_cost: float = 0.0) -> None:
        self.name = base.name
        self._base, self._looks, self._token_cost = base, looks, token_cost
        self.tokens: Sequence[int] = ()
        self.context = 0

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose a worker."""
        if self._looks:
            tokens = [self.tokens[slot] for slot in situation.slots or ()]
            situation = situation._replace(tokens=tokens, context=self.context, token_cost=self._token_cost)
        return self._base.choose(situation, rng)


class KvRouter(Router):
    """A router that keeps tokens per engine, by the code of the live router.

    Parameters
    ----------
    policy : Seeing
    caches : sequence of Cache
    refuses : bool
        Whether engines without room are no candidates.
    """

    def __init__(
        self,
        policy: Seeing,
        knowledge: Knowledge,
        seed: int,
        caches: Sequence[Cache],
        *,
        refuses: bool,
    ) -> None:
        super().__init__(policy, knowledge, seed)
        self._seeing, self._caches, self._refuses = policy, list(caches), refuses
        self.contexts = Contexts()
        self.expected = [0] * len(caches)
        self._room: Sequence[int] = range(len(caches))

    def send(self, record: int, prompt: int, now: float) -> tuple[Placement, int]:
        """Place a request, and return what it is expected to hold, too; RouterError if it is refused."""
        context = self.contexts.of(prompt, None, 1)
        if self._refuses:
            self._room = self.contexts.room(
                context, self._workers, self._caches, self.expected, self._own, now=now
            )
        self._seeing.tokens, self._seeing.context = self.expected, context.size
        placement = self.place(record, now)
        self.contexts.placed(context)
        self.expected[placement.worker] += context.size
        return placement, context.size

    def over(self, placement: Placement, size: int, now: float) -> None:
        """Count a request no longer."""
        self.ended(placement, now)
        self.expected[placement.worker] -= size

    def hear(self, engine: int, cache: Cache, answers: Answers, now: float) -> None:
        """Take what an engine says."""
        self.contexts.observe(f"d{engine}", answers, cache, self.expected[engine], now)

    def _slots(self, now: float) -> Sequence[int]:  # noqa: ARG002
        return self._room


class Found(NamedTuple):
    """What happened to the requests that are measured.

    Attributes
    ----------
    tpot, waited, latency : ndarray of float, shape (n,)
        Seconds between tokens, mean of each request; from its first try to its first token, and to its last.
    prompt : ndarray of int, shape (n,)
    refused : ndarray of bool, shape (n,)
        Whether it was at least once.
    preemptions : int
        While they came.
    """

    tpot: Times
    waited: Times
    latency: Times
    prompt: Ints
    refused: npt.NDArray[np.bool_]
    preemptions: int


def serve(
    engines: Sequence[KvEngine], router: KvRouter, workload: Workload, window: tuple[float, float]
) -> Found:
    """Send a workload to engines until every request that comes in a window has ended."""
    return _Simulation(engines, router, workload).run(*window)


class _Simulation:
    """The event loop."""

    def __init__(self, engines: Sequence[KvEngine], router: KvRouter, workload: Workload) -> None:
        self._engines, self._router, self._workload = engines, router, workload
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._plans = [0] * len(engines)
        self._placements: dict[int, tuple[Placement, int]] = {}
        n = len(workload.ready)
        self._first, self._last = np.full(n, math.nan), np.full(n, math.nan)
        self._refused = np.zeros(n, dtype=np.bool_)
        self._preemptions: list[int] = []
        self._left = int(workload.measured.sum())

    def run(self, begin: float, end: float) -> Found:
        """Run it."""
        for number, ready in enumerate(self._workload.ready.tolist()):
            self._at(ready, partial(self._place, number))
        for worker in range(len(self._engines)):
            self._at(_POLL * (1 + worker / len(self._engines)), partial(self._poll, worker))
        for time in (begin, end):
            self._at(time, self._count)
        while self._left or len(self._preemptions) < 2:
            now, _, what = heapq.heappop(self._due)
            what(now)
        some, ready = self._workload.measured, self._workload.ready
        return Found(
            ((self._last - self._first) / np.maximum(1, self._workload.tokens - 1))[some],
            (self._first - ready)[some],
            (self._last - ready)[some],
            self._workload.prompt[some],
            self._refused[some],
            self._preemptions[1] - self._preemptions[0],
        )

    def _at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (time, next(self._order), what))

    def _count(self, now: float) -> None:  # noqa: ARG002
        self._preemptions.append(sum(engine.preemptions for engine in self._engines))

    def _poll(self, worker: int, now: float) -> None:
        engine = self._engines[worker]
        cache = Cache(engine.capacity, engine.capacity, engine.held / engine.capacity)
        self._router.hear(worker, cache, Answers(engine.generated, engine.finished), now)
        self._at(now + _POLL, partial(self._poll, worker))

    def _place(self, number: int, now: float) -> None:
        record, prompt, tokens = (
            int(values[number])
            for values in (self._workload.record, self._workload.prompt, self._workload.tokens)
        )
        try:
            placed = self._router.send(record, prompt, now)
        except RouterError:
            self._refused[number] = True
            self._at(now + _RETRY, partial(self._place, number))
            return
        self._placements[number] = placed
        worker = placed[0].worker
        due = self._engines[worker].add(Request(number, record, prompt, tokens), now)
        if due is not None:
            self._plan(worker, due)

    def _advance(self, worker: int, plan: int, now: float) -> None:
        if plan != self._plans[worker]:
            return  # it was changed meanwhile
        engine = self._engines[worker]
        ended, joined = engine.advance(now)
        for one in ended:
            self._last[one.number] = now
            self._router.over(*self._placements.pop(one.number), now)
            self._left -= bool(self._workload.measured[one.number])
        for one in joined:
            self._first[one.number] = engine.first_end
        if engine.due is not None:
            self._plan(worker, engine.due)

    def _plan(self, worker: int, due: float) -> None:
        self._plans[worker] += 1
        self._at(due, partial(self._advance, worker, self._plans[worker]))

"""One run of a pool whose KV caches may be full: who does not fit waits, and who grows too much is preempted.

As vLLM's scheduler: the first that waits is let in while its tokens fit. Where the next step's tokens do not fit, the request that
came last loses its blocks. It waits first in line, and then its tokens are computed anew, in steps of the whole batch. Requests that
a router refuses come again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.core.policy import Choice, Policy, Situation
from eldr.core.step_time import StepTime
from eldr.simulate.active import ActiveExperts
from eldr.simulate.population import Ints
from eldr.simulate.routing import Placement
from eldr.simulate.workload import Times
from eldr_lab.synthetic.routers import Knowledge, Router
from eldr_router.engines.kv_room import Answers, KvCache, KvRoom
from eldr_router.http.errors import RouterError

_POLL, _RETRY = 10.0, 1.0
"""Seconds between a router's looks at an engine's metrics; seconds that ``Retry-After`` says."""


_STEPS = 8
"""Taken together at most: a context that grows by so many tokens costs the same."""


@dataclass(slots=True, eq=False)
class Request:
    """A request at an engine.

    Attributes
    ----------
    number, record : int
        Which one of the workload, and of the population.
    prompt, tokens : int
        Of its prompt, and steps that it needs.
    generated : int
        Steps that it has had.
    joined : int
        The engine's step before which it joined.
    """

    number: int
    record: int
    prompt: int
    tokens: int
    generated: int = 0
    joined: int = 0

    @property
    def held(self) -> int:
        """Tokens of KV."""
        return self.prompt + self.generated


class KvEngine:
    """One engine.

    Parameters
    ----------
    step_time : StepTime
    experts : ActiveExperts
        An empty batch.
    capacity : int
        Tokens of its KV cache.
    recompute : float
        Seconds for each token that a preempted request has to compute anew.

    Attributes
    ----------
    held : int
        Tokens of KV in use.
    preemptions, generated, finished : int
        Since the start: how often somebody lost its blocks, tokens, and requests.
    """

    def __init__(
        self,
        step_time: StepTime,
        experts: ActiveExperts,
        *,
        capacity: int,
        recompute: float,
        max_num_seqs: int = 256,
    ) -> None:
        self._step_time, self._experts = step_time, experts
        self.capacity = capacity
        self._recompute = recompute
        self._most = max_num_seqs
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # who came last stands last
        self._step = self._planned = 0
        self._begin = self._seconds = 0.0
        self._active = 0.0
        self.held = self.preemptions = self.generated = self.finished = 0

    def add(self, request: Request, now: float) -> float | None:
        """Take a request in; return when :meth:`advance` is due, if that changed."""
        if request.prompt >= self.capacity:
            raise ValueError(f"prompt: {request.prompt} tokens never fit a KV cache of {self.capacity}")
        self._waiting.append(request)
        if not self._running:
            return now if len(self._waiting) == 1 else None
        if self._planned == 1:
            return None
        steps = max(1, -int(-(now - self._begin) // self._seconds))
        if steps >= self._planned:
            return None
        self._planned = steps
        return max(now, self._begin + steps * self._seconds)

    def advance(self, now: float) -> tuple[list[Request], list[Request]]:
        """End the steps that are due and begin the next ones; return who ended, and who joined for the first time."""
        self._step += self._planned
        grown = self._planned * len(self._running)
        self.held += grown
        self.generated += grown
        for request in self._running:
            request.generated += self._planned
        ended = [request for request in self._running if request.generated >= request.tokens]
        self._running = [request for request in self._running if request.generated < request.tokens]
        for request in ended:
            self._leave(request)
        self.finished += len(ended)
        joined, extra = self._admit()
        while self.held + len(self._running) > self.capacity and len(self._running) > 1:
            request = self._running.pop()
            self._leave(request)
            self._waiting.appendleft(request)
            self.preemptions += 1
        self._plan(now, extra)
        return ended, [request for request in joined if request in self._running]

    def _admit(self) -> tuple[list[Request], float]:
        joined: list[Request] = []
        extra = 0.0
        while self._waiting and len(self._running) < self._most:
            request = self._waiting[0]
            if self.held + request.held + len(self._running) + 1 > self.capacity and self._running:
                break
            self._waiting.popleft()
            request.joined = self._step
            self._experts.join(request.record, self._step)
            self._running.append(request)
            self.held += request.held
            if request.generated:
                extra += self._recompute * request.held
            else:
                joined.append(request)
        return joined, extra

    def _leave(self, request: Request) -> None:
        self._experts.leave(request.record, request.joined)
        self.held -= request.held

    def _plan(self, now: float, extra: float) -> None:
        self._planned = 0
        if not self._running:
            return
        batch = len(self._running)
        self._begin = now
        self._active = self._experts.count(self._step)
        self._seconds = self._step_time.seconds(batch, self._active, self.held) + extra
        left = min(request.tokens - request.generated for request in self._running)
        fitting = max(1, (self.capacity - self.held) // batch)
        self._planned = 1 if extra else min(left, fitting, _STEPS)

    @property
    def due(self) -> float | None:
        """When the planned steps end, None while idle; seconds."""
        return self._begin + self._planned * self._seconds if self._running else None

    @property
    def first_end(self) -> float:
        """When the step that began last ends, seconds."""
        return self._begin + self._seconds


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
        """Choose an engine."""
        if self._looks:
            tokens = [self.tokens[slot] for slot in situation.slots or ()]
            situation = situation._replace(tokens=tokens, context=self.context, token_cost=self._token_cost)
        return self._base.choose(situation, rng)


class KvRouter(Router):
    """A router that keeps tokens per engine, by the code of the live router.

    Parameters
    ----------
    policy : Seeing
    caches : sequence of KvCache
    refuses : bool
        Whether engines without room are no candidates.
    """

    def __init__(
        self,
        policy: Seeing,
        knowledge: Knowledge,
        seed: int,
        caches: Sequence[KvCache],
        *,
        refuses: bool,
    ) -> None:
        super().__init__("r0", policy, knowledge, seed)
        self._seeing, self._caches, self._refuses = policy, list(caches), refuses
        self.kv_room = KvRoom()
        self.expected = [0] * len(caches)
        self._room: Sequence[int] = range(len(caches))

    def send(self, record: int, prompt: int, now: float) -> tuple[Placement, int]:
        """Place a request, and return what it is expected to hold, too; RouterError if it is refused."""
        context = self.kv_room.demand(prompt, None, 1)
        if self._refuses:
            self._room = self.kv_room.room(context, self._caches, self.expected)
        self._seeing.tokens, self._seeing.context = self.expected, context.size
        placement = self.place(record, now)
        self.kv_room.placed(context)
        self.expected[placement.engine] += context.size
        return placement, context.size

    def over(self, placement: Placement, size: int, now: float) -> None:
        """Count a request no longer."""
        self.ended(placement, now)
        self.expected[placement.engine] -= size

    def observe(self, engine: int, cache: KvCache, answers: Answers) -> None:
        """Observe an engine's report."""
        self._caches[engine] = cache = cache._replace(expected=self.expected[engine])
        self.kv_room.observe(f"d{engine}", answers, cache)

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
        for number in range(len(self._engines)):
            self._at(_POLL * (1 + number / len(self._engines)), partial(self._poll, number))
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

    def _poll(self, number: int, now: float) -> None:
        engine = self._engines[number]
        cache = KvCache(engine.capacity, engine.capacity, engine.held / engine.capacity)
        self._router.observe(number, cache, Answers(engine.generated, engine.finished))
        self._at(now + _POLL, partial(self._poll, number))

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
        at = placed[0].engine
        due = self._engines[at].add(Request(number, record, prompt, tokens), now)
        if due is not None:
            self._plan(at, due)

    def _advance(self, number: int, plan: int, now: float) -> None:
        if plan != self._plans[number]:
            return  # it was changed meanwhile
        engine = self._engines[number]
        ended, joined = engine.advance(now)
        for one in ended:
            self._last[one.number] = now
            self._router.over(*self._placements.pop(one.number), now)
            self._left -= bool(self._workload.measured[one.number])
        for one in joined:
            self._first[one.number] = engine.first_end
        if engine.due is not None:
            self._plan(number, engine.due)

    def _plan(self, number: int, due: float) -> None:
        self._plans[number] += 1
        self._at(due, partial(self._advance, number, self._plans[number]))

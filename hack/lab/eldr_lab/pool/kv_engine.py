"""A decode engine whose KV cache may be full, in simulated time: who does not fit waits, and who grows too much is preempted.

As vLLM's scheduler: the first that waits is let in while its tokens fit. Where the next step's tokens do not fit, the request that
came last loses its blocks. It waits first in line, and then its tokens are computed anew, in steps of the whole batch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from eldr.core.step_time import StepTime
from eldr.simulate.active import ActiveExperts

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

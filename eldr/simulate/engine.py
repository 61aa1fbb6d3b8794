"""A decode engine with continuous batching, in simulated time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

from eldr.core.step_time import StepTime
from eldr.simulate.active import ActiveExperts


class Limits(NamedTuple):
    """What one engine can hold; requests beyond it wait."""

    max_num_seqs: int = 256


class Member(NamedTuple):
    """A request at an engine.

    Attributes
    ----------
    number : int
        Which request of the workload.
    record : int
        Which one of the population.
    tokens : int
        Steps it needs.
    """

    number: int
    record: int
    tokens: int


class Ran(NamedTuple):
    """Equal steps, one after another: so many from ``begin``, each with ``batch`` requests and ``active`` experts."""

    begin: float
    seconds: float
    steps: int
    batch: int
    active: float


class Engine:
    """One engine: batch and active experts are those at a step's start, and no request joins before it is over.

    Steps between two changes of the batch are taken together where they cost the same.

    Parameters
    ----------
    step_time : StepTime
        Of its fullest rank's experts.
    limits : Limits
    experts : ActiveExperts
        An empty batch.
    """

    def __init__(self, step_time: StepTime, limits: Limits, experts: ActiveExperts) -> None:
        self._step_time = step_time
        self._limits = limits
        self._experts = experts
        self._waiting: deque[Member] = deque()
        self._ends: list[tuple[int, int, int, Member]] = []  # last step, then in order of joining
        self._step = 0
        self._begin = 0.0
        self._seconds = 0.0
        self._active = 0.0
        self._planned = 0

    @property
    def has_room(self) -> bool:
        """Whether a request would wait no longer than the next step."""
        return len(self._ends) + len(self._waiting) < self._limits.max_num_seqs

    def add(self, member: Member, now: float) -> float | None:
        """Take a request in.

        Returns
        -------
        float or None
            When :meth:`advance` is due, if that changed; seconds. What was due before is not any longer.
        """
        self._waiting.append(member)
        if not self._ends:
            return now if len(self._waiting) == 1 else None  # at once, unless another one made it due already
        if self._is_full:
            return None
        steps = max(1, math.ceil((now - self._begin) / self._seconds))
        if steps >= self._planned:
            return None
        self._planned = steps
        return max(now, self._begin + steps * self._seconds)

    def advance(self, now: float) -> tuple[list[Member], list[Member], Ran | None]:
        """End the steps that are due and admit waiting requests; :attr:`due` is when to call it again.

        Returns
        -------
        ended, joined : list of Member
            Joined ones see their first token at :attr:`first_end`.
        """
        ran = None
        ended: list[Member] = []
        if self._ends:
            ran = Ran(self._begin, self._seconds, self._planned, len(self._ends), self._active)
            self._step += self._planned
            while self._ends and self._ends[0][0] <= self._step:
                last, _, _, member = heapq.heappop(self._ends)
                self._experts.leave(member.record, last - member.tokens)
                ended.append(member)
        joined: list[Member] = []
        while self._waiting and not self._is_full:
            member = self._waiting.popleft()
            self._experts.join(member.record, self._step)
            heapq.heappush(self._ends, (self._step + member.tokens, self._step, member.number, member))
            joined.append(member)
        if self._ends:
            self._begin = now
            self._active = self._experts.count(self._step)
            self._seconds = self._step_time.seconds(len(self._ends), self._active)
            self._planned = self._ends[0][0] - self._step if self._experts.steady else 1
        return ended, joined, ran

    @property
    def due(self) -> float | None:
        """When the planned steps end, None while idle; seconds."""
        return self._begin + self._planned * self._seconds if self._ends else None

    @property
    def first_end(self) -> float:
        """When the step that began last ends, seconds."""
        return self._begin + self._seconds

    @property
    def _is_full(self) -> bool:
        return len(self._ends) >= self._limits.max_num_seqs

"""Routers of the simulated pool: the router's own policies, with what a router knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.core.policy import Policy, Situation
from eldr.core.profiles import Profiles
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.core.tolls import Tolls
from eldr.core.union import Shape, Stay, Unions, spread
from eldr.simulate.population import Population


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What every router of a pool knows from the start.

    Attributes
    ----------
    population : Population
        Prompts, as far as they are seen, and labels; nothing that only engines know is looked at.
    step_times : sequence of StepTime, length n_engines
    similarity : ndarray of float32, shape (n_records, n_engines), optional
        Cosine of each request's signature to each engine's centroid.
    unions : bool
        Whether the policy looks at expected unions.
    learns : bool
        Whether, with unions, similarity is to what the router learns of each engine, and not to centroids.
    """

    population: Population
    step_times: Sequence[StepTime]
    similarity: Floats | None
    unions: bool
    learns: bool = False


class Placement(NamedTuple):
    """Where a request went, among how many candidates, and its part in the router's union of that engine."""

    worker: int
    candidates: int
    stay: Stay | None


class Router:
    """One router, which counts what it placed."""

    def __init__(self, name: str, policy: Policy, knowledge: Knowledge, seed: int) -> None:
        self.name = name
        self._policy = policy
        self._knowledge = knowledge
        population = knowledge.population
        n = len(knowledge.step_times)
        self._workers = [f"d{number}" for number in range(n)]
        self._own = [0] * n
        self._turn = 0
        self._rng = np.random.default_rng([seed, 3])
        self._scores = None if knowledge.similarity is None else knowledge.similarity.tolist()
        self._labels = [population.labels[label] for label in population.label.tolist()]
        self._tokens = population.prompt_tokens.tolist()
        self._tolls = Tolls()
        self._unions = self._profiles = None
        if knowledge.unions:
            layers = spread(range(population.n_layers))
            shape = Shape(population.n_layers, population.n_experts, population.top_k, layers)
            self._unions = Unions(shape)
            if knowledge.learns:
                self._profiles = Profiles(shape.cells)

    @property
    def in_flight(self) -> Sequence[int]:
        """Requests in flight at each engine that this router placed."""
        return self._own

    def place(self, record: int, now: float) -> Placement:
        """Choose an engine for a request, and count it there."""
        loads, similarity = self._loads(), self._similarity(record, now)
        slots, workers, step_times = self._pool(now)
        if len(slots) < len(loads):
            loads = [loads[slot] for slot in slots]
            similarity = None if similarity is None else [similarity[slot] for slot in slots]
        unions = self._unions
        request = outlook = tolls = None
        if unions is not None:
            request = unions.request(self._knowledge.population.prefill[record], self._tokens[record])
            outlook = unions.outlook(request, workers, loads)
            tolls = self._tolls.of(slots)
            if self._profiles is not None:
                similarity = self._profiles.similarity(request.share, workers)
        situation = Situation(
            loads,
            self._turn,
            similarity,
            slots=slots,
            label=self._labels[record],
            outlook=outlook,
            step_times=step_times,
            tolls=tolls,
        )
        at, candidates = self._policy.choose(situation, self._rng)
        worker = slots[at]
        self._turn += 1
        favourite = self._tolls.settle(situation)
        self._own[worker] += 1
        stay = None
        if unions is not None and request is not None:
            stay = unions.join(workers[at], request)
            if self._profiles is not None:
                self._profiles.learn(
                    None if favourite is None else workers[favourite],
                    workers[at],
                    request.share,
                    unions.version,
                )
        return Placement(worker, candidates, stay)

    def _pool(self, now: float) -> tuple[Sequence[int], Sequence[str], Sequence[StepTime]]:  # noqa: ARG002 - all stay
        """Return the engines that are there, by number, name and step time."""
        return range(len(self._workers)), self._workers, self._knowledge.step_times

    def _loads(self) -> list[int]:
        """Return what the policy takes for the requests in flight at each engine."""
        return self._own

    def _similarity(self, record: int, now: float) -> list[float] | None:  # noqa: ARG002 - centroids stay
        return None if self._scores is None else self._scores[record]

    def ended(self, placement: Placement) -> None:
        """Count a request no longer."""
        self._own[placement.worker] -= 1
        if placement.stay is not None:
            placement.stay.leave()

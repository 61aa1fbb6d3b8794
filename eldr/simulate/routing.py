"""The router of a simulated pool: the router's own policies, with what a router knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.policy import Policy, Situation
from eldr.core.profiles import Profiles
from eldr.core.signature import Floats
from eldr.core.step_time import StepTime
from eldr.core.tolls import Tolls
from eldr.core.union import Shape, Stay, Unions, spread
from eldr.simulate.population import Population


class Knowledge(NamedTuple):
    """What a router of a pool knows from the start.

    Attributes
    ----------
    population : Population
        Prompts; nothing that only engines know is read.
    step_times : sequence of StepTime, length n_engines
    similarity : ndarray of float32, shape (n_records, n_engines), optional
        Cosine of each request's signature to each engine's centroid.
    unions : bool
        Whether the policy compares expected active experts.
    learns : bool
        Whether, with unions, similarity is to what the router learns of each engine, and not to centroids.
    """

    population: Population
    step_times: Sequence[StepTime]
    similarity: Floats | None
    unions: bool
    learns: bool = False


class Placement(NamedTuple):
    """Where a request went, and its part in the router's union of that engine."""

    engine: int
    stay: Stay | None


class Router:
    """One router, which counts what it placed."""

    def __init__(self, policy: Policy, knowledge: Knowledge, seed: int) -> None:
        self._policy = policy
        self._knowledge = knowledge
        population = knowledge.population
        self._engines = [f"d{number}" for number in range(len(knowledge.step_times))]
        self._own = [0] * len(self._engines)
        self._turn = 0
        self._rng = np.random.default_rng([seed, 3])
        self._scores = None if knowledge.similarity is None else knowledge.similarity.tolist()
        self._tokens = population.prompt_tokens.tolist()
        self._tolls = Tolls()
        self._unions = self._profiles = None
        if knowledge.unions:
            layers = spread(range(population.n_layers))
            shape = Shape(population.n_layers, population.n_experts, population.top_k, layers)
            self._unions = Unions(shape)
            if knowledge.learns:
                self._profiles = Profiles(shape.cells)

    def place(self, record: int, now: float) -> Placement:
        """Choose an engine for a request, and count it there."""
        slots = self._slots(now)
        engines = [self._engines[slot] for slot in slots]
        loads, similarity = self._loads(), self._similarity(record, now)
        loads = [loads[slot] for slot in slots]
        if similarity is not None:
            similarity = [similarity[slot] for slot in slots]
        unions, request, outlook = self._unions, None, None
        if unions is not None:
            request = unions.request(self._knowledge.population.prefill[record], self._tokens[record])
            outlook = unions.outlook(request, engines, loads)
            if self._profiles is not None:
                similarity = self._profiles.similarity(request.share, engines)
        situation = Situation(
            loads,
            self._turn,
            similarity,
            slots=slots,
            outlook=outlook,
            step_times=[self._knowledge.step_times[slot] for slot in slots],
            tolls=None if unions is None else self._tolls.of(slots),
        )
        at = self._policy.choose(situation, self._rng).position
        self._turn += 1
        favourite = self._tolls.settle(situation)
        self._own[slots[at]] += 1
        if unions is None or request is None:
            return Placement(slots[at], None)
        stay = unions.join(engines[at], request)
        if self._profiles is not None:
            favoured = None if favourite is None else engines[favourite]
            self._profiles.learn(favoured, engines[at], request.share, unions.version)
        return Placement(slots[at], stay)

    def ended(self, placement: Placement, now: float) -> None:  # noqa: ARG002
        """Count a request no longer."""
        self._own[placement.engine] -= 1
        if placement.stay is not None:
            placement.stay.leave()

    def _slots(self, now: float) -> Sequence[int]:  # noqa: ARG002
        """Return the numbers of the engines that may be chosen."""
        return range(len(self._engines))

    def _loads(self) -> Sequence[int]:
        """Return what the policy takes for the requests in flight at each engine."""
        return self._own

    def _similarity(self, record: int, now: float) -> Sequence[float] | None:  # noqa: ARG002
        return None if self._scores is None else self._scores[record]

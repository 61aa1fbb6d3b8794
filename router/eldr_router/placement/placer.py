"""Placement on decode engines: choice and occupancy in one step."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from eldr.contract import POLICY_MARGINAL, ROLE_DECODE
from eldr.core.policy import Situation
from eldr_router.engines.endpoint import Endpoint, Occupancy
from eldr_router.engines.kv_room import KvDemand
from eldr_router.engines.registry import Registry
from eldr_router.http.errors import no_endpoint
from eldr_router.placement.choice import Candidates, Decision, choose
from eldr_router.placement.locality import Locality
from eldr_router.placement.signature import Signature
from eldr_router.placement.table import Table


class Placement(NamedTuple):
    """A decision.

    Attributes
    ----------
    occupancy : Occupancy
        Already counted.
    policy, reason : str
        The policy that decided, and why it (one of :data:`eldr_router.placement.choice.REASONS`).
    n_candidates : int
        Among how many engines load decided.
    similarity : float or None
        Cosine to the chosen engine's centroid.
    in_flight : int
        Sequences in flight there before this one, whoever sent them.
    """

    endpoint: Endpoint
    occupancy: Occupancy
    policy: str
    reason: str
    n_candidates: int
    similarity: float | None
    in_flight: int


class Placer:
    """Places requests on decode engines.

    Parameters
    ----------
    registry : Registry
    rng : numpy.random.Generator
        For the policies that draw.

    Attributes
    ----------
    locality : Locality
    """

    def __init__(self, registry: Registry, rng: np.random.Generator) -> None:
        self._registry = registry
        self.locality = Locality()
        self._rng = rng

    def place(
        self,
        table: Table,
        signature: Signature,
        exclude: Collection[Endpoint] = (),
        *,
        sequences: int = 1,
        domain: str | None = None,
        demand: KvDemand | None = None,
        is_new: bool = True,
    ) -> Placement:
        """Choose an engine with room and occupy it, in one step.

        ``domain`` is what the client says it belongs to. ``demand`` is the KV that it needs; without it, none.
        ``is_new``: it was placed nowhere before, so that it counts as traffic.

        Raises
        ------
        RouterError
            503 if no engine is left, 429 if none that is left has room, 400 if none can ever hold its prompt.
        """
        if is_new:
            self.locality.notice(signature)
        turn = self._registry.turn(ROLE_DECODE)
        decision = self.decide(table, signature, exclude, sequences, turn, domain=domain, demand=demand)
        at, endpoint = decision.choice.position, decision.endpoint
        if is_new:
            self.locality.settle(decision)
            if decision.scores is not None:
                self.locality.traffic.count(
                    decision.scores, endpoint.spec.slot, table.document.tau, decision.situation.in_flight
                )
        similarities = decision.situation.similarity
        # to a centroid: of a learned prior there is none
        similarity = None if similarities is None or decision.scores is None else similarities[at]
        known = None if similarity is None or math.isnan(similarity) else similarity
        stay = self.locality.join(endpoint.name, decision.candidates.request, sequences)
        if demand is not None:
            self._registry.kv_room.placed(demand)
        size = 0 if demand is None else demand.size
        return Placement(
            endpoint, Occupancy(endpoint, sequences, stay, size), decision.policy, decision.reason, decision.choice.n_candidates,
            known, decision.situation.in_flight[at],
        )  # fmt: skip

    def decide(
        self,
        table: Table,
        signature: Signature,
        exclude: Collection[Endpoint],
        sequences: int,
        turn: int,
        *,
        domain: str | None = None,
        demand: KvDemand | None = None,
    ) -> Decision:
        """Choose, and change nothing. RouterError as of :meth:`place`."""
        usable = self._registry.healthy_or_all(ROLE_DECODE, exclude)
        if not usable:
            raise no_endpoint(ROLE_DECODE)
        limit = table.max_in_flight
        room = self._registry.with_free_slots(usable, limit)
        if not room:
            raise self._registry.full_error(limit)
        tokens: list[int] = []
        if demand is not None:
            room, tokens = self._registry.with_kv_room(room, demand)
        situation = Situation(
            self._registry.totals(room), turn, slots=[engine.spec.slot for engine in room], label=domain, sequences=sequences, tokens=tokens,
            context=0 if demand is None else demand.size, token_cost=self.locality.step_times.token_cost,
        )  # fmt: skip
        candidates = Candidates(room, situation)
        if table.policy.name == POLICY_MARGINAL:
            candidates = self.locality.expect(signature, room, situation)
        return choose(table, signature, candidates, self._rng)

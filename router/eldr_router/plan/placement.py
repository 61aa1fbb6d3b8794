"""Which decode engine takes a request: policy, centroids, and what happens when something is missing."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidsError, CentroidSet
from eldr.contract import POLICY_ELDR, ROLE_DECODE
from eldr.core.policy import JSQ, Choice, Situation
from eldr.wire import ExpertCounts, WireError, decode_counts
from eldr_router.http.errors import no_endpoint
from eldr_router.plan.table import Table
from eldr_router.state.registry import Endpoint, Lease, Registry

REASONS = (
    "similarity",
    "policy",
    "no_centroids",
    "no_signature",
    "zero_vector",
    "wrong_shape",
    "wire_error",
    "whole",
)
_JSQ = JSQ()


@dataclass(frozen=True, slots=True)
class Signature:
    """What a prefill engine told about a request's experts: counts, or why there are none."""

    counts: ExpertCounts | None = None
    missing: str = "no_signature"

    @property
    def quality(self) -> str:
        """What a prefill answer was worth: one of :data:`eldr.contract.SIGNATURE_QUALITIES`."""
        if self.counts is None:
            return self.missing
        return "exact" if self.counts.exact else "inexact"


NO_SIGNATURE = Signature()
WHOLE = Signature(missing="whole")


class Placement(NamedTuple):
    """A decision.

    Attributes
    ----------
    endpoint : Endpoint
    lease : Lease
        Already acquired.
    policy, reason : str
        The policy that decided, and why it (one of :data:`REASONS`).
    candidates : int
        Among how many engines load decided.
    similarity : float or None
        Cosine to the chosen engine's centroid.
    in_flight : int
        The engine's requests in flight before this one, over all routers.
    """

    endpoint: Endpoint
    lease: Lease
    policy: str
    reason: str
    candidates: int
    similarity: float | None
    in_flight: int


class Decision(NamedTuple):
    """A choice and what it rests on; lists are by eligible engine.

    Attributes
    ----------
    endpoints : list of Endpoint
        Those that are well and have room.
    totals : list of int
        Sequences in flight on each, over all routers.
    similarity : list of float or None
        Cosine to each one's centroid, NaN for one without.
    policy, reason : str
        As in :class:`Placement`.
    choice : eldr.core.policy.Choice
    """

    endpoints: list[Endpoint]
    totals: list[int]
    similarity: list[float] | None
    policy: str
    reason: str
    choice: Choice


def read_signature(fields: object) -> Signature:
    """Parse the ``eldr`` object of a prefill response; never raises."""
    if fields is None or (isinstance(fields, dict) and "unavailable" in fields):
        return NO_SIGNATURE
    try:
        return Signature(decode_counts(fields))
    except WireError:
        return Signature(missing="wire_error")


def score(centroids: CentroidSet | None, signature: Signature) -> tuple[list[float] | None, str]:
    """Return the similarity to each slot and ``"similarity"``, or None and the reason."""
    if centroids is None:
        return None, "no_centroids"
    if signature.counts is None:
        return None, signature.missing
    try:
        similarity: list[float] = centroids.similarities(signature.counts.counts).tolist()
    except CentroidsError:
        return None, "wrong_shape"
    return (similarity, "similarity") if any(similarity) else (None, "zero_vector")


class Placer:
    """Places requests on decode engines.

    Parameters
    ----------
    registry : Registry
    rng : numpy.random.Generator
        For the policies that draw.
    """

    def __init__(self, registry: Registry, rng: np.random.Generator) -> None:
        self._registry = registry
        self._rng = rng

    def place(
        self, table: Table, signature: Signature, exclude: Collection[Endpoint] = (), *, sequences: int = 1
    ) -> Placement:
        """Choose an engine with room for so many sequences and acquire its lease, in one step.

        Raises
        ------
        RouterError
            503 if no engine is left, 429 if this router has no room on any that is left.
        """
        decision = self.decide(table, signature, exclude, sequences, self._registry.turn(ROLE_DECODE))
        at = decision.choice.worker
        similarity = None if decision.similarity is None else decision.similarity[at]
        known = None if similarity is None or math.isnan(similarity) else similarity
        endpoint = decision.endpoints[at]
        return Placement(
            endpoint, Lease(endpoint, sequences), decision.policy, decision.reason, decision.choice.candidates,
            known, decision.totals[at],
        )  # fmt: skip

    def decide(
        self, table: Table, signature: Signature, exclude: Collection[Endpoint], sequences: int, turn: int
    ) -> Decision:
        """Choose, and change nothing.

        Raises
        ------
        RouterError
            As :meth:`place` does.
        """
        usable = self._registry.usable(ROLE_DECODE, exclude)
        if not usable:
            raise no_endpoint(ROLE_DECODE)
        # own bounds keep the limit over all routers; what the others have in flight, heard late, only ranks the engines
        limit, bound = table.max_in_flight, self._registry.bound
        room = [engine for engine in usable if engine.in_flight + sequences <= bound(engine, limit)]
        if not room:
            raise self._registry.full(limit, sequences)
        totals = self._registry.totals(room)
        policy, slots = table.policy, None
        if signature is WHOLE:
            policy, reason = _JSQ, "whole"
        elif policy.name != POLICY_ELDR:
            reason = "policy"
        else:
            slots, reason = score(table.centroids, signature)
            if slots is None:
                policy = _JSQ
        similarity = None if slots is None else _per_endpoint(slots, room)
        choice = policy.choose(Situation(totals, turn, similarity), self._rng)
        return Decision(room, totals, similarity, policy.name, reason, choice)


def _per_endpoint(slots: list[float], endpoints: list[Endpoint]) -> list[float]:
    """Return each engine's similarity; NaN, always a candidate, for one without a centroid."""
    known = len(slots)
    wanted = [endpoint.spec.slot for endpoint in endpoints]
    return [slots[at] if 0 <= at < known else math.nan for at in wanted]

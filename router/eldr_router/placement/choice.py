"""The choice of a decode engine by policy and centroids. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidsError, CentroidSet
from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr.core.balancers import JSQ, Domain
from eldr.core.policy import Choice, Situation
from eldr.core.union import Request
from eldr_router.engines.endpoint import Endpoint
from eldr_router.placement.signature import WHOLE, Signature
from eldr_router.placement.table import Table

REASONS = (
    "similarity",
    "union",
    "domain",
    "no_domain",
    "policy",
    "no_centroids",
    "no_signature",
    "zero_vector",
    "wrong_shape",
    "wire_error",
    "whole",
)
_JSQ = JSQ()


class Candidates(NamedTuple):
    """The engines that are well and have room, and what is known of them.

    Attributes
    ----------
    endpoints : sequence of Endpoint
    situation : eldr.core.policy.Situation
        What policies look at, but for similarities to centroids.
    request : Request or None
        What the request is expected to use; None: nothing is known of it, it counts as one of the pool's mean.
    learned : sequence of float, optional
        Where no centroid set is in effect: cosine to what was learned of each engine.
    numbers : sequence of int
        With it: whose tolls they are.
    reason : str
        Why there is an outlook for this request, or only for a mean one, or none.
    """

    endpoints: Sequence[Endpoint]
    situation: Situation
    request: Request | None = None
    learned: Sequence[float] | None = None
    numbers: Sequence[int] = ()
    reason: str = "policy"


class Decision(NamedTuple):
    """A choice among candidates, and what it rests on.

    Attributes
    ----------
    situation : eldr.core.policy.Situation
        The candidates', with similarities.
    policy, reason : str
        The policy that decided, and why it (one of :data:`REASONS`).
    choice : eldr.core.policy.Choice
    scores : list of float or None
        Cosine to each centroid; None without a set, or without a signature that fits it.
    """

    candidates: Candidates
    situation: Situation
    policy: str
    reason: str
    choice: Choice
    scores: list[float] | None

    @property
    def endpoint(self) -> Endpoint:
        """The engine that was chosen."""
        return self.candidates.endpoints[self.choice.position]


def choose(table: Table, signature: Signature, candidates: Candidates, rng: np.random.Generator) -> Decision:
    """Choose among candidates; ``rng`` is for the policies that draw."""
    policy, is_asked = table.policy, False
    situation = candidates.situation
    slots = situation.slots or ()
    # every policy: traffic is counted by how it looks to the set, also while the set is out of service
    scores, missing = score(table.centroids, signature)
    if policy.name == POLICY_MARGINAL:
        is_asked, reason = True, candidates.reason
        if situation.outlook is None:
            policy = _JSQ
    elif isinstance(policy, Domain):
        group = policy.groups.get(situation.label or "", frozenset())
        reason = "domain" if group.intersection(slots) else "no_domain"
    elif signature is WHOLE:
        policy, reason = _JSQ, "whole"
    elif policy.name != POLICY_ELDR:
        reason = "policy"
    else:
        is_asked, reason = True, missing
        if scores is None:
            policy = _JSQ
    if is_asked and scores is not None:
        situation = situation._replace(similarity=_of_engines(scores, slots))
    elif candidates.learned is not None:
        situation = situation._replace(similarity=candidates.learned, slots=candidates.numbers)
    return Decision(candidates, situation, policy.name, reason, policy.choose(situation, rng), scores)


def score(centroids: CentroidSet | None, signature: Signature) -> tuple[list[float] | None, str]:
    """Return the similarity to each slot, or None; and the reason."""
    if centroids is None:
        return None, "no_centroids"
    if signature.counts is None:
        return None, signature.missing
    try:
        similarity: list[float] = centroids.similarities(signature.counts.counts).tolist()
    except CentroidsError:
        return None, "wrong_shape"
    return (similarity, "similarity") if any(similarity) else (None, "zero_vector")


def _of_engines(scores: list[float], slots: Sequence[int]) -> list[float]:
    """Return each engine's similarity; NaN, always a candidate, for one without a centroid."""
    known = len(scores)
    if slots == list(range(known)):  # nearly always
        return scores
    return [scores[slot] if 0 <= slot < known else math.nan for slot in slots]

"""Which decode engine takes a request: policy, centroids, and what happens when something is missing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidsError, CentroidSet
from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr.core.balancers import JSQ, Domain
from eldr.core.policy import Choice, Situation
from eldr.core.step_time import StepTime
from eldr.core.union import Outlook, Request
from eldr_router.plan.signature import WHOLE, Signature
from eldr_router.plan.table import Table

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


class Ranked(NamedTuple):
    """A choice among engines.

    Attributes
    ----------
    policy, reason : str
        The policy that decided, and why it (one of :data:`REASONS`).
    choice : eldr.core.policy.Choice
    scores : list of float or None
        Cosine to each centroid; None without a set, or without a signature that fits it.
    """

    situation: Situation
    policy: str
    reason: str
    choice: Choice
    scores: list[float] | None


class Field(NamedTuple):
    """The engines that are well and have room, and what is known of them.

    Attributes
    ----------
    slots : list of int
        The centroid that each one belongs to, -1 for none.
    totals : list of int
        Sequences in flight on each: own, and those of others as reported.
    sequences : int
        How many the request runs.
    request : Request or None
        What the request is expected to use; None: nothing is known of it, it counts as one of the pool's mean.
    outlook : Outlook or None
        Expected unions, where the policy asks for them and something is known.
    step_times : sequence of StepTime
        With an outlook.
    engines : sequence of str
        With an outlook: their names.
    tolls : sequence of float, optional
        With an outlook: what similarities are charged.
    learned : sequence of float, optional
        With an outlook, where no centroid set is in effect: cosine to what was learned of each engine.
    numbers : sequence of int
        With it: whose tolls they are.
    reason : str
        Why there is an outlook for this request, or only for a mean one, or none.
    label : str or None
        The domain that the request says it belongs to.
    tokens : sequence of int
        KV that sequences are expected to hold on each, those of others by the mean; empty where no engine tells what it can hold.
    context : int
        KV that the request is expected to hold.
    token_cost : float
        Sequences that a token of KV counts as where policies compare loads; 0 while nobody knows.
    """

    slots: list[int]
    totals: list[int]
    sequences: int = 1
    request: Request | None = None
    outlook: Outlook | None = None
    step_times: Sequence[StepTime] = ()
    engines: Sequence[str] = ()
    tolls: Sequence[float] | None = None
    learned: Sequence[float] | None = None
    numbers: Sequence[int] = ()
    reason: str = "policy"
    label: str | None = None
    tokens: Sequence[int] = ()
    context: int = 0
    token_cost: float = 0.0


def rank(table: Table, signature: Signature, field: Field, *, turn: int, rng: np.random.Generator) -> Ranked:
    """Choose among engines that are well and have room.

    Parameters
    ----------
    turn : int
        Rotates ties.
    rng : numpy.random.Generator
        For the policies that draw.
    """
    policy, is_asked = table.policy, False
    # every policy: traffic is counted by how it looks to the set, also while the set is out of service
    scores, missing = score(table.centroids, signature)
    if policy.name == POLICY_MARGINAL:
        is_asked, reason = True, field.reason
        if field.outlook is None:
            policy = _JSQ
    elif isinstance(policy, Domain):
        group = policy.groups.get(field.label or "", frozenset())
        reason = "domain" if group.intersection(field.slots) else "no_domain"
    elif signature is WHOLE:
        policy, reason = _JSQ, "whole"
    elif policy.name != POLICY_ELDR:
        reason = "policy"
    else:
        is_asked, reason = True, missing
        if scores is None:
            policy = _JSQ
    similarity: Sequence[float] | None = None
    slots: Sequence[int] = field.slots
    if is_asked and scores is not None:
        similarity = _of_engines(scores, slots)
    elif field.learned is not None:
        similarity, slots = field.learned, field.numbers
    situation = Situation(
        field.totals,
        turn,
        similarity,
        slots=slots,
        label=field.label,
        outlook=field.outlook,
        step_times=field.step_times,
        sequences=field.sequences,
        tolls=field.tolls,
        tokens=field.tokens,
        context=field.context,
        token_cost=field.token_cost,
    )
    return Ranked(situation, policy.name, reason, policy.choose(situation, rng), scores)


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


def _of_engines(scores: list[float], slots: Sequence[int]) -> list[float]:
    """Return each engine's similarity; NaN, always a candidate, for one without a centroid."""
    known = len(scores)
    if slots == list(range(known)):  # nearly always
        return scores
    return [scores[slot] if 0 <= slot < known else math.nan for slot in slots]

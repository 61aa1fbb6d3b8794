"""Which decode engine takes a request: policy, centroids, and what happens when something is missing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.centroids import CentroidsError, CentroidSet
from eldr.contract import POLICY_ELDR
from eldr.core.balancers import JSQ
from eldr.core.policy import Choice, Situation
from eldr_router.plan.signature import WHOLE, Signature
from eldr_router.plan.table import Table

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


class Ranked(NamedTuple):
    """A choice among engines.

    Attributes
    ----------
    similarity : list of float or None
        Cosine to each engine's centroid, NaN for one without.
    policy, reason : str
        The policy that decided, and why it (one of :data:`REASONS`).
    choice : eldr.core.policy.Choice
    """

    similarity: list[float] | None
    policy: str
    reason: str
    choice: Choice


def rank(
    table: Table,
    signature: Signature,
    slots: Sequence[int],
    totals: Sequence[int],
    *,
    turn: int,
    rng: np.random.Generator,
) -> Ranked:
    """Choose among engines that are well and have room.

    Parameters
    ----------
    table : Table
    signature : Signature
    slots : sequence of int
        The centroid that each engine belongs to, -1 for none.
    totals : sequence of int
        Sequences in flight on each, over all routers.
    turn : int
        Rotates ties.
    rng : numpy.random.Generator
        For the policies that draw.
    """
    policy, scores = table.policy, None
    if signature is WHOLE:
        policy, reason = _JSQ, "whole"
    elif policy.name != POLICY_ELDR:
        reason = "policy"
    else:
        scores, reason = score(table.centroids, signature)
        if scores is None:
            policy = _JSQ
    similarity = None if scores is None else _of_engines(scores, slots)
    return Ranked(similarity, policy.name, reason, policy.choose(Situation(totals, turn, similarity), rng))


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
    return [scores[slot] if 0 <= slot < known else math.nan for slot in slots]

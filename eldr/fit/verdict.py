"""The verdict: is the new set better than what serves now."""

from __future__ import annotations

from typing import NamedTuple

from eldr.fit.pipeline import FitResult

MIN_PER_CENTROID = 16
"""Fitted records per centroid below which a set that cannot be evaluated is not trusted."""


class Verdict(NamedTuple):
    """Outcome of a fit, in the words of the report."""

    verdict: str
    reason: str
    message: str


def judge(result: FitResult) -> Verdict:
    """Accept a set that saves active experts on held-out records: more than the active one, or than JSQ."""
    evaluation = result.evaluation
    if evaluation is None and result.fitted < MIN_PER_CENTROID * result.centroids.k:
        least = MIN_PER_CENTROID * result.centroids.k
        return Verdict(
            "Rejected", "TooFewSamples", f"{result.fitted} fitted records are no evidence; {least} are needed"
        )
    if evaluation is None:
        return Verdict(
            "Accepted", "NotEvaluated", "too few held-out records with decode-time activations to compare"
        )
    new, old = evaluation.reduction, evaluation.active_reduction
    batch = f"at batch {evaluation.jsq.batch:.0f}, {evaluation.held_out} held-out records"
    if old is not None and new <= old:
        return Verdict(
            "Rejected", "NotBetter", f"saves {new:.1%} of active experts, the active set {old:.1%} ({batch})"
        )
    if new <= 0:
        return Verdict("Rejected", "NoGain", f"saves no active experts against JSQ ({new:.1%}, {batch})")
    than = "JSQ" if old is None else f"JSQ, the active set {old:.1%}"
    return Verdict("Accepted", "Better", f"saves {new:.1%} of active experts against {than} ({batch})")

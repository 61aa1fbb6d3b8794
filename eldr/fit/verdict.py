"""The verdict: is the new set better than what serves now."""

from __future__ import annotations

from typing import NamedTuple

from eldr.contract import BETTER_MARGIN
from eldr.core.halves import Interval
from eldr.fit.evaluation import MIN_HELD_OUT
from eldr.fit.pipeline import FitResult

MIN_PER_CENTROID = 16
"""Fitted records per centroid below which a set that cannot be evaluated is not trusted."""


class Verdict(NamedTuple):
    """Outcome of a fit, in the words of the report."""

    verdict: str
    reason: str
    message: str


def judge(result: FitResult) -> Verdict:
    """Accept a set that significantly saves experts on held-out records.

    More than the active set, and more than JSQ.

    Notes
    -----
    Significantly: the full 90 % interval lies above :data:`eldr.contract.BETTER_MARGIN`, or above 0 against JSQ.
    A set whose full interval against JSQ lies below 0 regresses.
    A set that cannot be judged is accepted only where it replaces none, or nothing can be chosen.
    """
    evaluation = result.evaluation
    if evaluation is None and result.fitted < MIN_PER_CENTROID * result.centroids.k:
        least = MIN_PER_CENTROID * result.centroids.k
        return Verdict(
            "Rejected",
            "TooFewSamples",
            f"{result.fitted} fitted records are too few to judge; {least} are needed",
        )
    if evaluation is None and result.centroids.k < 2:
        return Verdict("Accepted", "NotEvaluated", "one decode engine: there is nothing to choose")
    if evaluation is None:
        few = f"fewer than {MIN_HELD_OUT} held-out records have decode-time activations"
        if not result.replaces:
            return Verdict("Accepted", "NotEvaluated", f"{few}: nothing is predicted of this first set")
        remedy = "log more requests that decode (spec.signatures.samplePercent), or wait for them"
        return Verdict("Rejected", "NotEvaluated", f"{few} to compare with the active set by; {remedy}")
    new, old, gain = evaluation.reduction, evaluation.active_reduction, evaluation.gain
    rests = f"at batch {evaluation.jsq.batch:.0f}, {evaluation.held_out} held-out records, 90 % intervals"
    if new.high < 0:
        stays = "routers go on without a set" if old is None else "the active set stays"
        more = f"{-new.value * 100:.1f} % more active experts than JSQ (90 %: {-new.high * 100:.1f} to {-new.low * 100:.1f})"
        return Verdict("Regresses", "WorseThanJSQ", f"would use {more}; {stays} ({rests})")
    saves = f"saves {percent(new)} of active experts against JSQ"
    if old is not None and gain is not None:
        which = "the active set regresses," if evaluation.active_harms else "the active set saves"
        saves += f"; {which} {percent(old)}, a difference of {percent(gain)}"
        if gain.high < 0:
            return Verdict("Rejected", "NotBetter", f"{saves}: worse than the active set ({rests})")
        if not gain.low > BETTER_MARGIN:
            reason = f"the lower bound of which must exceed {BETTER_MARGIN * 100:g}"
            return Verdict("Rejected", "NotBetter", f"{saves}, {reason} ({rests})")
    if not new.low > 0:
        return Verdict(
            "Rejected",
            "NoGain",
            f"{saves}: no significant saving; more records would narrow the interval ({rests})",
        )
    return Verdict("Accepted", "Better", f"{saves} ({rests})")


def percent(share: Interval) -> str:
    """Return a share and its interval as people read them.

    Examples
    --------
    >>> percent(Interval(0.0812, 0.0694, 0.093))
    '8.1 % (6.9 to 9.3)'
    """
    return f"{share.value * 100:.1f} % ({share.low * 100:.1f} to {share.high * 100:.1f})"

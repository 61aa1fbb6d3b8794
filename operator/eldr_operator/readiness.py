"""Conditions of an EldrDeployment -> the one that keeps it from being ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from eldr_operator.conditions import SYMPTOMS, Condition

_DEADLINE = "ProgressDeadlineExceeded"


def summed_up(
    causes: Sequence[Condition], progressing: Condition, available: Condition, roles: Sequence[Condition]
) -> Condition | None:
    """Return the condition that ``Ready`` repeats; None if all are as they should be.

    ``Available`` and a deadline tell only that pods are missing. Where a role knows why, that is the reason: who
    reads ``ImagePull`` knows what to do.

    Parameters
    ----------
    causes : sequence of Condition
        What is amiss before any pod can be: a spec that cannot be used, a model that is not there.
    roles : sequence of Condition
        Of prefill, decode and router.
    """
    amiss = [
        condition for condition in (*causes, progressing, available, *roles) if condition.status != "True"
    ]
    first = min(amiss, key=lambda condition: condition.status, default=None)  # False before Unknown
    if first is None or (first.reason != _DEADLINE and first not in (available, *roles)):
        return first
    cause = next(
        (condition for condition in roles if condition.status != "True" and condition.reason not in SYMPTOMS),
        None,
    )
    if cause is None or cause == first:
        return first
    return cause._replace(
        message=f"{cause.message}; {first.message}" if first not in roles else cause.message
    )

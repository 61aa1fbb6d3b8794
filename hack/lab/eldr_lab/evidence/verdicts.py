"""Our interval against a published number, and against what should hold."""

from __future__ import annotations

from enum import StrEnum

from eldr_lab.evidence.intervals import Interval

SHARE, LEAST = 0.25, 1.0
"""A published single run may be off by a quarter of its size, and by a point."""


class Verdict(StrEnum):
    """How our number stands to a published one."""

    REPRODUCED = "reproduced"
    UNDERSTATED = "understated"
    OVERSTATED = "overstated"
    NOT = "not reproduced"


class Holds(StrEnum):
    """Whether something holds in the simulation."""

    YES = "yes"
    NO = "**no**"
    OPEN = "undecided"


def judge(ours: Interval, low: float, high: float, *, least: float = LEAST) -> Verdict:
    """Compare our effect with a published range.

    Parameters
    ----------
    ours : Interval
    low, high : float
        The published range; equal for one number.
    least : float
        Smallest tolerance, in the effect's unit.

    Returns
    -------
    Verdict
        ``not reproduced`` if our interval holds no effect though the published number is one: its nearer end exceeds ``least``.
        ``reproduced`` if our interval reaches the range widened by a quarter of its nearer end; otherwise, of the same sign,
        ``overstated`` or ``understated``: the published number was measured, ours simulated; of the other, ``not reproduced``.
        A wide interval reaches no further than that quarter: little certainty of ours is no agreement.
    """
    nearest = low if ours.mean < low else high
    nothing = ours.low <= 0 <= ours.high
    if nothing and abs(nearest) > least:
        return Verdict.NOT
    slack = max(least, SHARE * abs(nearest))
    reach = min(ours.high - ours.mean, slack)
    if ours.mean + reach >= low - slack and ours.mean - reach <= high + slack:
        return Verdict.REPRODUCED
    if ours.mean * nearest < 0 or nothing:
        return Verdict.NOT
    return Verdict.OVERSTATED if abs(ours.mean) > abs(nearest) else Verdict.UNDERSTATED


def at_most(ours: Interval, bound: float) -> Holds:
    """Say whether a value is at most a bound, by its interval."""
    if ours.high <= bound:
        return Holds.YES
    return Holds.NO if ours.low > bound else Holds.OPEN


def within(ours: Interval, low: float, high: float) -> Holds:
    """Say whether a value lies in a range, by its interval."""
    if low <= ours.low and ours.high <= high:
        return Holds.YES
    return Holds.OPEN if ours.high >= low and ours.low <= high else Holds.NO

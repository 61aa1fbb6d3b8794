"""The course of a comparison: which policy is in effect when, and what is to be done next. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

ADOPT_SECONDS: Final = 120.0
"""Routers follow the routing table within seconds of the operator's pass; after so long something is wrong."""


class Window(NamedTuple):
    """A span with one policy.

    Attributes
    ----------
    pair : int
        From 0.
    is_own : bool
        Whether it is the deployment's own policy, and not the one that it is compared with.
    """

    pair: int
    is_own: bool


def windows(pairs: int, seed: int) -> tuple[Window, ...]:
    """Return windows in pairs of neighbours.

    The order within pairs is drawn for two pairs at a time, one of each order: drawn for each pair alone, six of them may all
    begin with the same policy, and a trend would count as an effect.
    """
    draw = random.Random(seed)  # noqa: S311 - a design, no secret
    blocks = [draw.random() < 0.5 for _ in range(-(-pairs // 2))]
    first = [blocks[pair // 2] == (pair % 2 == 0) for pair in range(pairs)]
    return tuple(Window(pair, is_own) for pair, own in enumerate(first) for is_own in (own, not own))


class Phase(enum.Enum):
    """What a window waits for."""

    SWITCH = "the policy to be set"
    ADOPT = "routers to place by it"
    SETTLE = "requests to end that were placed before"
    MEASURE = "its end"


class Do(enum.Enum):
    """What is to be done next."""

    SWITCH = enum.auto()
    WAIT = enum.auto()
    OPEN = enum.auto()
    CLOSE = enum.auto()
    GIVE_UP = enum.auto()
    END = enum.auto()


@dataclass(frozen=True, slots=True)
class Course:
    """Where a comparison stands.

    Attributes
    ----------
    window_seconds : float
        Length of a window from when routers place by its policy.
    carry_over : float
        Of that, what is not measured: requests run on that the other policy placed.
    since : float
        When the phase began.
    """

    windows: tuple[Window, ...]
    window_seconds: float
    carry_over: float
    at: int = 0
    phase: Phase = Phase.SWITCH
    since: float = 0.0

    @property
    def window(self) -> Window:
        """The window that is on."""
        return self.windows[self.at]


def step(course: Course, now: float, *, is_set: bool, is_adopted: bool) -> tuple[Course, Do]:
    """Return where a comparison stands now, and what to do.

    Parameters
    ----------
    is_set : bool
        Whether the spec holds the window's policy.
    is_adopted : bool
        Whether all routers place by it.
    """
    if course.at >= len(course.windows):
        return course, Do.END
    if course.phase is Phase.SWITCH and not is_set:
        return course, Do.SWITCH
    if course.phase is Phase.SWITCH:
        course = replace(course, phase=Phase.ADOPT, since=now)
    if course.phase is Phase.ADOPT:
        if is_adopted:
            return replace(course, phase=Phase.SETTLE, since=now), Do.WAIT
        return course, Do.GIVE_UP if now - course.since > ADOPT_SECONDS else Do.WAIT
    if course.phase is Phase.SETTLE:
        if now - course.since < course.carry_over:
            return course, Do.WAIT
        return replace(course, phase=Phase.MEASURE, since=now), Do.OPEN
    if now - course.since < course.window_seconds - course.carry_over:
        return course, Do.WAIT
    return replace(course, at=course.at + 1, phase=Phase.SWITCH, since=now), Do.CLOSE


def due(course: Course) -> float | None:
    """Return when the phase ends by time alone; None where it waits for something else."""
    if course.phase is Phase.SETTLE:
        return course.since + course.carry_over
    if course.phase is Phase.MEASURE:
        return course.since + course.window_seconds - course.carry_over
    return None

"""What placement policies have in common: input and answer.

Every policy is a pure function of a :class:`Situation` and a random generator, so that the simulator and the live
router run the same code. Situations hold plain lists: for the handful of engines that a pool has, one call of NumPy takes
as long as the whole decision does without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from eldr.core.step_time import StepTime
from eldr.core.union import Outlook


class Situation(NamedTuple):
    """What a policy may look at.

    Attributes
    ----------
    in_flight : sequence of int, length n_engines
        Requests in flight per eligible engine, at least one engine.
    turn : int
        Grows by one with every decision; rotates ties so that they never herd on the lowest index.
    similarity : sequence of float, length n_engines, optional
        Cosine of the request's signature to each engine's centroid; NaN for an engine without a centroid, which is
        always a candidate. None means "no preference": no signature, or no centroids.
    slots : sequence of int, length n_engines, optional
        Stable identity of each engine, needed by :class:`Domain` and tolls only.
    label : str, optional
        The request's workload label, used by :class:`Domain` only.
    outlook : Outlook, optional
        Expected unions of active experts, needed by :class:`MarginalUnion` only.
    step_times : sequence of StepTime, length n_engines
        Each engine's step time; with ``outlook``.
    sequences : int
        How many the request runs.
    tolls : sequence of float, length n_engines, optional
        What :class:`MarginalUnion` charges each similarity, see :class:`eldr.core.tolls.Tolls`; with ``slots``.
    tokens : sequence of int, length n_engines, optional
        Context that the requests of each engine are expected to hold; empty where it is not known.
    context : int
        What the request is expected to hold itself; with ``tokens``.
    token_cost : float
        Sequences that a token of context counts as; 0 until what it takes of a step is known.
    """

    in_flight: Sequence[int]
    turn: int
    similarity: Sequence[float] | None = None
    slots: Sequence[int] | None = None
    label: str | None = None
    outlook: Outlook | None = None
    step_times: Sequence[StepTime] = ()
    sequences: int = 1
    tolls: Sequence[float] | None = None
    tokens: Sequence[int] = ()
    context: int = 0
    token_cost: float = 0.0


class Choice(NamedTuple):
    """A decision: an engine's position, and how many load chose among."""

    position: int
    n_candidates: int


class Policy(Protocol):
    """One placement policy."""

    @property
    def name(self) -> str:
        """The policy's name as in ``spec.router.policy``."""

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose an engine."""


def loads(situation: Situation) -> Sequence[float]:
    """Return each engine's load: sequences, and context of known cost."""
    cost = situation.token_cost
    if not cost or not situation.tokens:
        return situation.in_flight
    return [here + cost * held for here, held in zip(situation.in_flight, situation.tokens, strict=True)]


def least_loaded(in_flight: Sequence[float], turn: int) -> int:
    """Return the position of the least load, ties rotated by ``turn``."""
    least = min(in_flight)
    nth = turn % in_flight.count(least)
    at = in_flight.index(least)
    for _ in range(nth):
        at = in_flight.index(least, at + 1)
    return at


def known_scores(scores: Sequence[float]) -> Sequence[float]:
    """Return the similarities of engines that have a centroid.

    Others have NaN.
    """
    # one NaN makes the sum NaN; nearly always there is none, and nothing to copy
    return scores if not math.isnan(sum(scores)) else [score for score in scores if not math.isnan(score)]


def check_load(max_load: float) -> None:
    """Raise ValueError unless a bound on load is at least the mean."""
    if not max_load >= 1.0:
        raise ValueError(f"max_load: expected at least 1, got {max_load!r}")


def bound(situation: Situation, max_load: float) -> float:
    """Return the most sequences that an engine may hold with the request.

    That is ``max_load`` times the mean load, the request included.
    """
    loads = situation.in_flight
    return max_load * (sum(loads) / len(loads) + situation.sequences)


def within(situation: Situation, max_load: float) -> list[int]:
    """Return the engines that stay below ``max_load`` times the mean.

    The least loaded engine always does.
    """
    limit, n = bound(situation, max_load), situation.sequences
    return [at for at, load in enumerate(situation.in_flight) if load + n <= limit]


def least_loaded_of(candidates: Sequence[int], situation: Situation) -> Choice:
    """Choose the candidate with the least load, ties rotated."""
    if len(candidates) == 1:
        return Choice(candidates[0], 1)
    load = loads(situation)
    chosen = least_loaded([load[at] for at in candidates], situation.turn)
    return Choice(candidates[chosen], len(candidates))

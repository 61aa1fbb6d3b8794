"""Placement policies: which decode worker takes the next request.

Every policy is a pure function of a :class:`Situation` and a random generator, so that the simulator and the live
router run the same code. Situations hold plain lists: for the handful of workers that a pool has, one call of NumPy takes
as long as the whole decision does without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Situation(NamedTuple):
    """What a policy may look at.

    Attributes
    ----------
    in_flight : sequence of int, length n_workers
        Requests in flight per eligible worker, at least one worker.
    turn : int
        Grows by one with every decision; rotates ties so that they never herd on the lowest index.
    similarity : sequence of float, length n_workers, optional
        Cosine of the request's signature to each worker's centroid; NaN for a worker without a centroid, which is
        always a candidate. None means "no preference": no signature, or no centroids.
    slots : sequence of int, length n_workers, optional
        Stable identity of each worker, needed by :class:`Domain` only.
    label : str, optional
        The request's workload label, used by :class:`Domain` only.
    """

    in_flight: Sequence[int]
    turn: int
    similarity: Sequence[float] | None = None
    slots: Sequence[int] | None = None
    label: str | None = None


class Choice(NamedTuple):
    """A policy's decision: the worker's position, and among how many candidates load decided."""

    worker: int
    candidates: int


class Policy(Protocol):
    """One placement policy."""

    @property
    def name(self) -> str:
        """The policy's name as in ``spec.router.policy``."""

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose a worker."""


def least_loaded(in_flight: Sequence[int], turn: int) -> int:
    """Return the position of the fewest requests in flight, ties rotated by ``turn``."""
    least = min(in_flight)
    nth = turn % in_flight.count(least)
    at = in_flight.index(least)
    for _ in range(nth):
        at = in_flight.index(least, at + 1)
    return at


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Workers in turn."""

    name: str = "RoundRobin"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        """Choose the worker whose turn it is."""
        return Choice(situation.turn % len(situation.in_flight), 1)


@dataclass(frozen=True, slots=True)
class Random:
    """A uniformly random worker."""

    name: str = "Random"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose any worker."""
        return Choice(int(rng.integers(len(situation.in_flight))), 1)


@dataclass(frozen=True, slots=True)
class JSQ:
    """Join the shortest queue: fewest requests in flight."""

    name: str = "JSQ"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        """Choose the worker with the fewest requests in flight."""
        return Choice(least_loaded(situation.in_flight, situation.turn), len(situation.in_flight))


_JSQ = JSQ()


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The less loaded of two distinct random workers (the first of the pair on a tie)."""

    name: str = "PowerOfTwo"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose between two random workers."""
        n = len(situation.in_flight)
        if n == 1:
            return Choice(0, 1)
        first = int(rng.integers(n))
        second = (first + 1 + int(rng.integers(n - 1))) % n
        return Choice(first if situation.in_flight[first] <= situation.in_flight[second] else second, 2)


@dataclass(frozen=True, slots=True)
class Domain:
    """A fixed group of workers per workload label, fewest in flight inside the group.

    Parameters
    ----------
    groups : mapping of str to frozenset of int
        Slots that serve each label. A label without a group, or whose workers are all gone, may go anywhere.
    """

    groups: Mapping[str, frozenset[int]]
    name: str = "Domain"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the least loaded worker of the label's group."""
        group = self.groups.get(situation.label or "")
        if group is None or situation.slots is None:
            return _JSQ.choose(situation, rng)
        members = [at for at, slot in enumerate(situation.slots) if slot in group]
        return _least_loaded_of(members, situation) if members else _JSQ.choose(situation, rng)


@dataclass(frozen=True, slots=True)
class BandJSQ:
    """ELDR: among the workers whose centroid is nearly as similar as the best one, the least loaded.

    Parameters
    ----------
    tau : float
        Width of the band: candidates have ``s_k >= max s - tau``. 0 is pure top-1, 2 is JSQ.
    min_candidates : int
        Widens the band to at least so many workers, next best similarity first.

    References
    ----------
    .. [1] ELDR, arXiv 2607.00466, online routing; ``min_candidates = 2`` is the rule of its artifact.
    """

    tau: float = 0.1
    min_candidates: int = 1
    name: str = "ELDR"

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau <= 2.0:
            raise ValueError(f"tau: expected 0..2, got {self.tau!r}")
        if self.min_candidates < 1:
            raise ValueError(f"min_candidates: expected at least 1, got {self.min_candidates!r}")

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the least loaded worker of the band; without a preference, JSQ."""
        if situation.similarity is None:
            return _JSQ.choose(situation, rng)
        scores = situation.similarity
        # NaN for a worker without a centroid: one makes the sum NaN, and every comparison with it False
        known = (
            scores if not math.isnan(sum(scores)) else [score for score in scores if not math.isnan(score)]
        )
        floor = max(known, default=0.0) - self.tau
        if len(scores) >= self.min_candidates and min(known, default=floor) >= floor:
            return _JSQ.choose(situation, rng)  # everybody is in the band
        band = [at for at, score in enumerate(scores) if not score < floor]
        if len(band) < self.min_candidates:
            order = [-math.inf if math.isnan(score) else -score for score in scores]
            band = sorted(range(len(scores)), key=order.__getitem__)[: self.min_candidates]
        return _least_loaded_of(band, situation)


def _least_loaded_of(candidates: Sequence[int], situation: Situation) -> Choice:
    loads = [situation.in_flight[at] for at in candidates]
    return Choice(candidates[least_loaded(loads, situation.turn)], len(candidates))


def make_policy(
    name: str,
    *,
    tau: float = 0.1,
    min_candidates: int = 1,
    groups: Mapping[str, frozenset[int]] | None = None,
) -> Policy:
    """Return a policy by its name.

    Raises
    ------
    ValueError
        If the name is unknown (the message lists the known ones) or a parameter is out of range.
    """
    match name:
        case "ELDR":
            return BandJSQ(tau=tau, min_candidates=min_candidates)
        case "JSQ":
            return JSQ()
        case "RoundRobin":
            return RoundRobin()
        case "PowerOfTwo":
            return PowerOfTwo()
        case "Random":
            return Random()
        case "Domain":
            return Domain(groups=groups or {})
        case _:
            raise ValueError(
                f"policy: unknown name {name!r}; known are ELDR, JSQ, RoundRobin, PowerOfTwo, Random, Domain"
            )

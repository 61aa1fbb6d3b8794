"""Policies that look at load, or at nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eldr.core.policy import Choice, Situation, least_loaded, least_loaded_of, loads


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Engines in turn."""

    name: str = "RoundRobin"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        """Choose the engine whose turn it is."""
        return Choice(situation.turn % len(situation.in_flight), 1)


@dataclass(frozen=True, slots=True)
class Random:
    """A uniformly random engine."""

    name: str = "Random"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose any engine."""
        return Choice(int(rng.integers(len(situation.in_flight))), 1)


@dataclass(frozen=True, slots=True)
class JSQ:
    """Join the shortest queue: least load, see :func:`eldr.core.policy.loads`."""

    name: str = "JSQ"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:  # noqa: ARG002
        """Choose the engine with the least load."""
        return Choice(least_loaded(loads(situation), situation.turn), len(situation.in_flight))


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The less loaded of two random engines; on a tie, the first."""

    name: str = "PowerOfTwo"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose between two random engines."""
        n = len(situation.in_flight)
        if n == 1:
            return Choice(0, 1)
        first = int(rng.integers(n))
        second = (first + 1 + int(rng.integers(n - 1))) % n
        load = loads(situation)
        return Choice(first if load[first] <= load[second] else second, 2)


@dataclass(frozen=True, slots=True)
class Domain:
    """The least loaded engine of the group that a label has.

    Parameters
    ----------
    groups : mapping of str to frozenset of int
        Slots that serve each label. A label without a group, or whose engines are all gone, may go anywhere.
    """

    groups: Mapping[str, frozenset[int]]
    name: str = "Domain"

    def choose(self, situation: Situation, rng: np.random.Generator) -> Choice:
        """Choose the least loaded engine of the label's group."""
        group = self.groups.get(situation.label or "")
        if group is None or situation.slots is None:
            return JSQ().choose(situation, rng)
        members = [at for at, slot in enumerate(situation.slots) if slot in group]
        return least_loaded_of(members, situation) if members else JSQ().choose(situation, rng)

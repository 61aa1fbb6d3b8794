"""How many requests per second make which batch, by Little's law and randomly placed requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.step_time import StepTime
from eldr.simulate.population import Population

_ROUNDS = 12
_DRAWS = 8


class OperatingPoint(NamedTuple):
    """A pool's even load.

    Attributes
    ----------
    rate : float
        Requests per second.
    batch : float
        Mean batch of an engine.
    step : float
        A step of the slowest engine, seconds.
    """

    rate: float
    batch: float
    step: float


def at_batch(
    laws: Sequence[StepTime],
    population: Population,
    tokens: float,
    batch: float,
    rng: np.random.Generator,
    *,
    ranks: int = 1,
) -> OperatingPoint:
    """Return the point where every engine's mean batch is a given one.

    Parameters
    ----------
    laws : sequence of StepTime
        One per engine.
    population : Population
    tokens : float
        Mean steps of a request.
    batch : float
    rng : numpy.random.Generator
    ranks : int
        Of every engine.
    """
    active = population.active(batch, rng, _DRAWS, ranks=ranks)
    steps = [law.seconds(batch, active) for law in laws]
    return OperatingPoint(sum(batch / (step * tokens) for step in steps), batch, max(steps))


def at_rate(
    laws: Sequence[StepTime],
    population: Population,
    tokens: float,
    rate: float,
    rng: np.random.Generator,
    *,
    most: int,
    ranks: int = 1,
) -> OperatingPoint:
    """Return the point where a pool serves a rate, with at most ``most`` requests on an engine.

    A rate that the pool cannot serve ends at ``most``.
    """
    low, high = 0.0, float(most)
    for _ in range(_ROUNDS):
        batch = (low + high) / 2
        if at_batch(laws, population, tokens, batch, rng, ranks=ranks).rate < rate:
            low = batch
        else:
            high = batch
    return at_batch(laws, population, tokens, high, rng, ranks=ranks)._replace(rate=rate)

"""How many requests per second make which batch, by Little's law and randomly placed requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from eldr.core.step_time import StepTime

_ROUNDS = 12
Used = Callable[[float], float]
"""Distinct experts per layer that a step waits for, of a mean batch."""


class OperatingPoint(NamedTuple):
    """A pool's even load.

    Attributes
    ----------
    batch : float
        Mean batch of an engine.
    step : float
        A step of the slowest engine, seconds.
    """

    rate: float
    batch: float
    step: float


def at_batch(step_times: Sequence[StepTime], used: Used, tokens: float, batch: float) -> OperatingPoint:
    """Return the point where every engine's mean batch is a given one.

    Parameters
    ----------
    step_times : sequence of StepTime
        One per engine.
    used : callable
    tokens : float
        Mean steps of a request.
    """
    active = used(batch)
    steps = [step_time.seconds(batch, active) for step_time in step_times]
    return OperatingPoint(sum(batch / (step * tokens) for step in steps), batch, max(steps))


def at_rate(
    step_times: Sequence[StepTime], used: Used, tokens: float, rate: float, *, most: int
) -> OperatingPoint:
    """Return the point where a pool serves a rate, with at most ``most`` requests on an engine.

    A rate that the pool cannot serve ends at ``most``.
    """
    low, high = 0.0, float(most)
    for _ in range(_ROUNDS):
        batch = (low + high) / 2
        if at_batch(step_times, used, tokens, batch).rate < rate:
            low = batch
        else:
            high = batch
    return at_batch(step_times, used, tokens, high)._replace(rate=rate)

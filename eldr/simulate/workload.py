"""When requests arrive, which ones, and how much they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eldr.simulate.population import Ints

Times = npt.NDArray[np.float64]

_MOST = 5e6
"""Requests of a run: more take longer than anybody waits."""


class Window(NamedTuple):
    """What is measured: requests that arrive in ``[warmup, end)``.

    Attributes
    ----------
    warmup, end : float
        Seconds.
    cooldown : float
        Requests go on arriving for so long, so that the last measured ones meet the same load as the others; seconds.
    """

    warmup: float
    end: float
    cooldown: float


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in the order in which routers place them.

    Attributes
    ----------
    arrival : ndarray of float, shape (n,)
        When each arrives, seconds.
    ready : ndarray of float, shape (n,)
        When its prompt is computed and it is placed, ascending, seconds.
    record : ndarray of int, shape (n,)
        Which request of the population it is.
    tokens : ndarray of int, shape (n,)
        Decode steps that it needs, at least 1.
    measured : ndarray of bool, shape (n,)
    per_step : float
        Tokens that a step generates for a request, mean.
    """

    arrival: Times
    ready: Times
    record: Ints
    tokens: Ints
    measured: npt.NDArray[np.bool_]
    per_step: float = 1.0

    def __len__(self) -> int:
        return len(self.arrival)


def make_workload(steps: Ints, *, rate: float, window: Window, seed: int, per_step: float) -> Workload:
    """Draw Poisson arrivals of requests in random order, each of them once before any comes again.

    Parameters
    ----------
    steps : ndarray of int, shape (n_records,)
        Decode steps of each request of a population.
    rate : float
        Requests per second.
    window : Window
    seed : int
        The same for every policy that is compared.
    per_step : float
        Tokens that a step generates for a request.

    Raises
    ------
    ValueError
        If the rate leads to too many requests.
    """
    arrival = poisson(rate, last_arrival(rate, window), np.random.default_rng([seed, 1]))
    rng, passes = np.random.default_rng([seed, 2]), -(-len(arrival) // len(steps))
    record = np.array([rng.permutation(len(steps)) for _ in range(passes)], dtype=np.int64)
    record = record.reshape(-1)[: len(arrival)]
    measured = (arrival >= window.warmup) & (arrival < window.end)
    return Workload(arrival, arrival, record, steps[record], measured, per_step)


def last_arrival(rate: float, window: Window) -> float:
    """Return when no more requests come, seconds; ValueError if the rate leads to too many requests."""
    last = window.end + window.cooldown
    if rate * last > _MOST:
        raise ValueError(
            f"{rate:.3g} requests per second for {last:.3g} s are too many, {_MOST:.0e} at most; "
            "lower the rate, shorten the time, or name a slower step-time model"
        )
    return last


def poisson(rate: float, last: float, rng: np.random.Generator) -> Times:
    """Draw when requests arrive until it is too late, seconds."""
    expected = int(last * rate * 1.2) + 100
    arrival = np.cumsum(rng.exponential(1 / rate, expected))
    while arrival[-1] < last:
        arrival = np.concatenate([arrival, arrival[-1] + np.cumsum(rng.exponential(1 / rate, expected))])
    return arrival[: np.searchsorted(arrival, last)]

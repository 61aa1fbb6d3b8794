"""When requests arrive, which ones, and how much they ask for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from eldr.simulate.population import Ints, Population

Times = npt.NDArray[np.float64]

_MOST = 5e6
"""Requests of a run: more take longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class Window:
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


def make_workload(
    population: Population,
    *,
    rate: float,
    window: Window,
    seed: int,
    output_tokens: int | None,
    per_step: float = 1.0,
) -> Workload:
    """Draw Poisson arrivals.

    Parameters
    ----------
    rate : float
        Requests per second.
    seed : int
        The same for every policy that is compared.
    output_tokens : int, optional
        Length of all answers; None: as long as each request's was.
    per_step : float
        Tokens that a step generates for a request.

    Raises
    ------
    ValueError
        If lengths are not known, or the rate is none, or leads to too many requests.
    """
    arrival = poisson(rate, last_arrival(rate, window), np.random.default_rng([seed, 1]))
    chance = np.random.default_rng([seed, 2])
    record = draw_records(population, draw_labels(population, len(arrival), chance), chance)
    steps = lengths(population, record, output_tokens, per_step)
    return replace(arranged(arrival, arrival, record, steps, window), per_step=per_step)


def last_arrival(rate: float, window: Window) -> float:
    """Return when no more requests come, seconds; ValueError if the rate is none, or leads to too many requests."""
    last = window.end + window.cooldown
    if rate <= 0:
        raise ValueError(f"rate: expected more than 0 requests per second, got {rate}")
    if not rate * last <= _MOST:
        raise ValueError(
            f"{rate:.3g} requests per second for {last:.3g} s are too many, {_MOST:.0e} at most; "
            "lower the rate, shorten the time, or name a slower step-time model"
        )
    return last


def lengths(population: Population, record: Ints, output_tokens: int | None, per_step: float = 1.0) -> Ints:
    """Return the decode steps of each request; ValueError if none are given and requests have none of their own."""
    if output_tokens is not None:
        tokens = np.full(len(record), output_tokens, dtype=np.int64)
    elif population.output_tokens is None:
        raise ValueError("output_tokens: expected a number, these requests have no lengths of their own")
    else:
        tokens = population.output_tokens[record]
    return np.ceil(tokens / per_step).astype(np.int64)


def arranged(arrival: Times, ready: Times, record: Ints, tokens: Ints, window: Window) -> Workload:
    """Return a workload in the order in which requests are placed."""
    order = np.argsort(ready, kind="stable")
    measured = (arrival >= window.warmup) & (arrival < window.end)
    return Workload(arrival[order], ready[order], record[order], tokens[order], measured[order])


def poisson(rate: float, last: float, rng: np.random.Generator) -> Times:
    """Draw when requests arrive until it is too late, seconds."""
    expected = int(last * rate * 1.2) + 100
    arrival = np.cumsum(rng.exponential(1 / rate, expected))
    while arrival[-1] < last:
        arrival = np.concatenate([arrival, arrival[-1] + np.cumsum(rng.exponential(1 / rate, expected))])
    return arrival[: np.searchsorted(arrival, last)]


def draw_labels(population: Population, n: int, rng: np.random.Generator) -> Ints:
    """Choose the labels of so many requests, by share."""
    return rng.choice(len(population.labels), n, p=population.shares)


def draw_records(population: Population, label: Ints, rng: np.random.Generator) -> Ints:
    """Choose a request of each given label, every one of a label before any comes again."""
    record = np.empty(len(label), dtype=np.int64)
    for number in range(len(population.labels)):
        members = np.flatnonzero(population.label == number)
        places = np.flatnonzero(label == number)
        if len(places):
            passes = [rng.permutation(members) for _ in range(-(-len(places) // len(members)))]
            record[places] = np.fromiter(itertools.chain.from_iterable(passes), np.int64)[: len(places)]
    return record

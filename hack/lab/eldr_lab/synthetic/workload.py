"""Which requests arrive, and how much they ask for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from eldr.simulate.population import Ints
from eldr.simulate.workload import Times, Window, Workload, last_arrival, poisson
from eldr_lab.synthetic.population import Population


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
        If lengths are not known, or the rate leads to too many requests.
    """
    arrival = poisson(rate, last_arrival(rate, window), np.random.default_rng([seed, 1]))
    chance = np.random.default_rng([seed, 2])
    record = draw_records(population, draw_labels(population, len(arrival), chance), chance)
    steps = lengths(population, record, output_tokens, per_step)
    return replace(arranged(arrival, arrival, record, steps, window), per_step=per_step)


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
    counted = (arrival >= window.warmup) & (arrival < window.end)
    return Workload(arrival[order], ready[order], record[order], tokens[order], counted[order])


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

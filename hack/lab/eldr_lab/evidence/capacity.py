"""Requests per second that a pool serves within a time per token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import JSQ, RATES
from eldr_lab.evidence.intervals import Interval, interval
from eldr_lab.evidence.results import Results

OBJECTIVE_RATE = 60.0
"""The objective is JSQ's time at this rate."""


class Gain(NamedTuple):
    """How much more than JSQ a policy serves, percent, and whether only a lower bound is known."""

    more: Interval
    at_least: bool

    def __str__(self) -> str:
        return f"{self.more}{', at least' if self.at_least else ''}"


def gain(
    results: Results, geometry: str, workload: str, policy: str, measure: str, *, beyond: bool = True
) -> Gain:
    """Return what a policy serves within JSQ's time at 60 requests/s.

    Parameters
    ----------
    results : Results
    geometry, workload, policy, measure : str
    beyond : bool
        Whether to look beyond the published rates.
    """
    cells = [
        cell
        for experiment in (("main", "beyond") if beyond else ("main",))
        for cell in results.cells(experiment, workload, geometry)
        if policy in cell.policies
    ]
    rates = [cell.rate for cell in cells]
    rows = [results.values(cell, policy, measure) for cell in cells]
    limit = next(results.values(cell, JSQ, measure) for cell in cells if cell.rate == OBJECTIVE_RATE)
    found = [capacity(rates, [row[seed] for row in rows], objective) for seed, objective in enumerate(limit)]
    more = interval([100 * (rate / OBJECTIVE_RATE - 1) for rate in found])
    return Gain(more, max(found) >= rates[-1] > OBJECTIVE_RATE)


def measured_gain(geometry: str, workload: str, policy: str, quantile: int) -> Gain | None:
    """Return the same of the artifact's times; None where JSQ itself keeps the objective at higher rates.

    Parameters
    ----------
    geometry, workload, policy : str
    quantile : int
        0 for P50, 1 for P99.
    """
    ours, jsq = (
        [published.measured()[geometry, workload, name, rate][quantile] for rate in RATES]
        for name in (policy, JSQ)
    )
    objective = jsq[RATES.index(OBJECTIVE_RATE)]
    if capacity(RATES, jsq, objective) > OBJECTIVE_RATE:
        return None
    found = capacity(RATES, ours, objective)
    return Gain(interval([100 * (found / OBJECTIVE_RATE - 1)]), found >= RATES[-1])


def capacity(rates: Sequence[float], times: Sequence[float], objective: float) -> float:
    """Return the highest rate whose time keeps an objective, by straight lines between neighbours.

    Beyond the highest rate nothing is known: it is returned where even that one keeps the objective; 0 where none does.

    Parameters
    ----------
    rates : sequence of float
        Ascending.
    times : sequence of float
        One per rate.
    objective : float
        In the times' unit.
    """
    best = rates[0] if times[0] <= objective else 0.0
    for (low, before), (high, after) in itertools.pairwise(zip(rates, times, strict=True)):
        if after <= objective:
            best = high
        elif before <= objective:
            best = low + (high - low) * (objective - before) / (after - before)
    return best

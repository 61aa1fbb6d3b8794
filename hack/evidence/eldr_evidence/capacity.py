"""Requests per second that a pool serves within a time per token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from eldr_evidence.cells import JSQ
from eldr_evidence.intervals import Interval, interval
from eldr_evidence.results import P99, Results

OBJECTIVE_RATE = 60.0
"""The objective is JSQ's P99 at this rate."""


def capacity(rates: Sequence[float], times: Sequence[float], objective: float) -> float:
    """Return the highest rate whose time keeps an objective, by straight lines between neighbours.

    Beyond the highest rate nothing is known: it is returned where even that one keeps the objective; 0 where none does.
    """
    best = rates[0] if times[0] <= objective else 0.0
    for (low, before), (high, after) in itertools.pairwise(zip(rates, times, strict=True)):
        if after <= objective:
            best = high
        elif before <= objective:
            best = low + (high - low) * (objective - before) / (after - before)
    return best


def gains(results: Results, geometry: str, workload: str, policy: str) -> tuple[Interval, bool]:
    """Return how much more than JSQ a policy serves within JSQ's P99 at 60 requests/s, percent, and whether that is a lower bound."""
    cells = results.cells("main", workload, geometry)
    rates = [cell.rate for cell in cells]
    rows = [results.values(cell, policy, P99) for cell in cells]
    limit = next(results.values(cell, JSQ, P99) for cell in cells if cell.rate == OBJECTIVE_RATE)
    found = [capacity(rates, [row[seed] for row in rows], objective) for seed, objective in enumerate(limit)]
    return interval([100 * (rate / OBJECTIVE_RATE - 1) for rate in found]), max(found) >= rates[
        -1
    ] > OBJECTIVE_RATE

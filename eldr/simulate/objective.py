"""Requests per second that a pool serves within a time per token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from eldr.simulate.outcome import Outcome
from eldr.simulate.pairs import half_width
from eldr.simulate.study import Study


class Objective(NamedTuple):
    """A bound on the time per token: which measure of :class:`~eldr.simulate.measures.Measures`, and seconds."""

    measure: str
    seconds: float


class Served(NamedTuple):
    """Requests per second within an objective.

    Attributes
    ----------
    rate : float
        Mean over the seeds.
    half_width : float
        Of its 95 % interval, NaN with one seed.
    at_least : bool
        Whether some seed keeps the objective at the highest rate that was simulated, or that it keeps up with.
    at_most : bool
        Whether some seed misses it at the lowest one already, or does not keep up there, and counts as serving nothing.
    """

    rate: float
    half_width: float
    at_least: bool
    at_most: bool


def capacity(rates: Sequence[float], times: Sequence[float], objective: float) -> float:
    """Return the highest rate whose time keeps an objective, by straight lines between neighbours.

    Beyond the highest rate nothing is known: it is returned where even that one keeps the objective; 0 where none does.
    The same goes for what lies between a finite time and an infinite one.

    Parameters
    ----------
    rates : sequence of float
        Ascending.
    times : sequence of float
        One per rate; infinite where the pool does not keep up.
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


def served(
    rates: Sequence[float],
    times: Sequence[Sequence[float]],
    objective: float,
    keeps_up: Sequence[Sequence[bool]],
) -> Served:
    """Return what is served within an objective, seed by seed.

    Parameters
    ----------
    rates : sequence of float
        Ascending.
    times : sequence of sequence of float
        Of each seed, one per rate, in the objective's unit.
    keeps_up : sequence of sequence of bool
        Whether the pool serves each rate for good: a full batch's time per token stays the same while the queue grows.
    """
    # a straight line to where the pool does not keep up ends where it begins
    rows = [
        [time if fine else math.inf for time, fine in zip(*pair, strict=True)]
        for pair in zip(times, keeps_up, strict=True)
    ]
    found = [capacity(rates, row, objective) for row in rows]
    open_ended = any(_is_last(rates, row, best) for row, best in zip(rows, found, strict=True))
    return Served(float(np.mean(found)), half_width(found), open_ended, min(found) == 0.0)


def _is_last(rates: Sequence[float], times: Sequence[float], best: float) -> bool:
    """Tell whether no time is known beyond the best rate."""
    return best > 0 and all(math.isinf(time) for rate, time in zip(rates, times, strict=True) if rate > best)


def parse_objective(text: str) -> Objective:
    """Return an objective from ``P50=MS``, ``P95=MS``, ``P99=MS`` or ``mean=MS``.

    Raises
    ------
    ValueError
        If it is none of them, or the time is not above 0.

    Examples
    --------
    >>> parse_objective("P99=40")
    Objective(measure='tpot_p99', seconds=0.04)
    """
    name, _, value = text.partition("=")
    measures = {"p50": "tpot_p50", "p95": "tpot_p95", "p99": "tpot_p99", "mean": "tpot_mean"}
    try:
        seconds = float(value) * 1e-3
        measure = measures[name.strip().lower()]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r}: expected P50=MS, P95=MS, P99=MS or mean=MS") from None
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{text!r}: expected more than 0 milliseconds")
    return Objective(measure, seconds)


def as_json(study: Study, outcomes: Sequence[Outcome], objective: Objective) -> dict[str, Any]:
    """Return what each policy serves within an objective, for each size of pool.

    Notes
    -----
    ``served`` is in requests per second; its half width is null with one seed. ``keeps_up`` is the highest rate that the pool
    keeps up with under every seed, 0 if there is none.
    """
    return {
        "measure": objective.measure,
        "seconds": objective.seconds,
        "pools": [
            {"engines": engines, "policies": _policies(study, outcomes, objective, engines)}
            for engines in dict.fromkeys(setting.engines for setting in study.settings)
        ],
    }


def _policies(
    study: Study, outcomes: Sequence[Outcome], objective: Objective, engines: int
) -> list[dict[str, Any]]:
    found = []
    for which, contender in enumerate(study.contenders):
        runs: dict[int, dict[float, Outcome]] = {}
        for one in outcomes:
            if one.contender == which and study.settings[one.setting].engines == engines:
                runs.setdefault(one.seed, {})[one.rate] = one
        rates = sorted(next(iter(runs.values())))
        rows = [[run[rate] for rate in rates] for run in runs.values()]
        some = served(
            rates,
            [[getattr(one.measures, objective.measure) for one in row] for row in rows],
            objective.seconds,
            [[one.keeps_up for one in row] for row in rows],
        )
        kept = (rate for at, rate in enumerate(rates) if all(row[at].keeps_up for row in rows))
        half = None if math.isnan(some.half_width) else some.half_width
        found.append(
            {
                "policy": contender.text,
                "served": [some.rate, half],
                "at_least": some.at_least,
                "at_most": some.at_most,
                "keeps_up": max(kept, default=0.0),
            }
        )
    return found

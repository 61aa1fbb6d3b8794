"""Requests per second that a pool serves within a time per token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from eldr.simulate.pairs import half_width
from eldr.simulate.study import Outcome, Study


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
        Whether some seed keeps the objective at the highest rate that was simulated.
    at_most : bool
        Whether some seed misses it at the lowest one already, and counts as serving nothing.
    """

    rate: float
    half_width: float
    at_least: bool
    at_most: bool


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


def served(rates: Sequence[float], times: Sequence[Sequence[float]], objective: float) -> Served:
    """Return what is served within an objective, seed by seed.

    Parameters
    ----------
    rates : sequence of float
        Ascending.
    times : sequence of sequence of float
        Of each seed, one per rate, in the objective's unit.
    objective : float
    """
    found = [capacity(rates, row, objective) for row in times]
    return Served(float(np.mean(found)), half_width(found), max(found) >= rates[-1], min(found) == 0.0)


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

    Parameters
    ----------
    study : Study
        Of several rates.
    outcomes : sequence of Outcome
    objective : Objective

    Notes
    -----
    ``served`` is in requests per second; its half width is null with one seed.
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
        times: dict[int, dict[float, float]] = {}
        for one in outcomes:
            if one.contender == which and study.settings[one.setting].engines == engines:
                times.setdefault(one.seed, {})[one.rate] = getattr(one.measures, objective.measure)
        rates = sorted(next(iter(times.values())))
        some = served(rates, [[row[rate] for rate in rates] for row in times.values()], objective.seconds)
        half = None if math.isnan(some.half_width) else some.half_width
        found.append(
            {
                "policy": contender.text,
                "served": [some.rate, half],
                "at_least": some.at_least,
                "at_most": some.at_most,
            }
        )
    return found

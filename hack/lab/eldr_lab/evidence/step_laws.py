"""Step-time laws by least squares from published round-robin times, and what their activations are.

``T = t0 + layers * b * (a0 + A) + c1 * B``: the batch B of a point is Little's law on its own measured time, A the expected
distinct experts of so many requests of the synthetic workload, whose preferences have strength 1: simulated pools weaken them by a
factor of each model, which was found later. ``a0`` is not fitted: the paper's ratio of 4.7 between a layer of all
and of an eighth of the experts gives it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from eldr.core.step_time import StepTime
from eldr_lab.evidence.cells import RATES
from eldr_lab.evidence.published import measured
from eldr_lab.pool.models import GEOMETRIES
from eldr_lab.synthetic.activations import WORKLOADS, Synthetic

LAYERS = {"qwen3-30b": 48, "gpt-oss-120b": 36, "gemma-4-26b": 30}
ENGINES = 16
STEPS = 511
"""Of an answer of 512 tokens after its first."""
RATIO, FEW, ALL = 4.7, 16, 128
OVERHEAD = (ALL - RATIO * FEW) / (RATIO - 1)
"""``a0``: a layer's own cost in experts."""
WORKLOAD = "task"
_SEEDS = 4


class Fitted(NamedTuple):
    """A law, and its time at each published point beside the published one, milliseconds."""

    law: StepTime
    points: tuple[tuple[float, float, float], ...]


class Point(NamedTuple):
    """A published time and what an engine did then: rate, milliseconds, batch, active experts."""

    rate: float
    milliseconds: float
    batch: float
    active: float


@functools.cache
def points(model: str) -> tuple[Point, ...]:
    """Return a model's published round-robin points."""
    found = []
    populations = [
        Synthetic(WORKLOADS[WORKLOAD], GEOMETRIES[model], calibration=2, requests=1000).traffic(seed).requests
        for seed in range(_SEEDS)
    ]
    for rate in RATES:
        time = measured()[model, WORKLOAD, "RoundRobin", rate].p50
        batch = rate * STEPS * time / 1e3 / ENGINES
        active = np.mean([some.active(batch, np.random.default_rng(1)) for some in populations])
        found.append(Point(rate, time, batch, float(active)))
    return tuple(found)


def fit(model: str) -> Fitted:
    """Fit a model's law: no constant below zero, least squares of the times."""
    known = points(model)
    layers = LAYERS[model]
    rows = np.array([[1.0, layers * (OVERHEAD + point.active), point.batch] for point in known])
    times = np.array([point.milliseconds for point in known])
    (t0, b, c1), _ = nnls(rows, times)
    law = StepTime(
        fixed=float(t0 + layers * b * OVERHEAD) / 1e3,
        per_expert=float(layers * b) / 1e3,
        per_request=float(c1) / 1e3,
        n_experts=GEOMETRIES[model].n_experts,
    )
    return Fitted(law, at_points(law, known))


def at_points(law: StepTime, known: tuple[Point, ...]) -> tuple[tuple[float, float, float], ...]:
    """Return rate, a law's time and the published time of each point, milliseconds."""
    return tuple(
        (point.rate, 1e3 * law.seconds(point.batch, point.active), point.milliseconds) for point in known
    )

"""What a world measured under one trace. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eldr_demo.compare import STATISTICS
from eldr_lab.steps.world import Ran, Served

MEASURES = (*(f"TPOT {name}" for name in STATISTICS), "active experts", "batch", "tokens/s")
"""Times in seconds; experts as a generated token sees them, batch as a step does."""


def measures(
    served: Mapping[int, Served],
    tokens: Sequence[int],
    steps: Sequence[Ran],
    numbers: Sequence[int],
    window: tuple[float, float],
) -> dict[str, float]:
    """Return a value for each of :data:`MEASURES`.

    Parameters
    ----------
    served : mapping of int to Served
        By the request's number.
    tokens : sequence of int
        Length of each request's answer, at least 2.
    steps : sequence of Ran
    numbers : sequence of int
        The requests that count.
    window : (float, float)
        Steps that begin in it count, seconds.
    """
    begin, end = window
    run = [step for step in steps if begin <= step.begin < end]
    times = np.array([(served[n].last - served[n].first) / (tokens[n] - 1) for n in numbers])
    made = sum(step.batch for step in run)
    return {f"TPOT {name}": float(statistic(times)) for name, statistic in STATISTICS.items()} | {
        "active experts": sum(step.batch * step.active for step in run) / made,
        "batch": made / len(run),
        "tokens/s": made / (end - begin),
    }

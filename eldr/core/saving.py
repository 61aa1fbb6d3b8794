"""What placement saves: active experts against random batches.

Random batches have the sizes of the steps that ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from eldr.core.random_batches import Doubles, Mix, expected_active, random_unions, steps_by_size

LEAST_WINDOWS = 6
LEAST_STEPS = 100
LAGS = 12
"""Spans that may hold the same requests: two minutes, where routers ask every ten seconds."""


class Batches(NamedTuple):
    """Decode steps of an engine: in a span of time, or since its start.

    Attributes
    ----------
    active : float
        Distinct experts of a step, mean over the layers, summed over the steps.
    sizes : tuple of float
        Steps by batch size, in buckets.
    requests : float
        Batch sizes, summed over the steps.
    fed : float
        Tokens fed, summed likewise: more than requests where they draft. Fewer mean that none were reported.
    """

    active: float
    sizes: tuple[float, ...]
    requests: float
    fed: float = 0.0


class Saving(NamedTuple):
    """Share of active experts that placement saves.

    Attributes
    ----------
    share : float
        Against random batches of the same sizes; negative if placement makes batches that use more.
    error : float
        Standard error.
    batch : float
        Mean batch size.
    drafts : float
        Share of experts that steps use beyond those of the same batches without drafts, at random.
    """

    share: float
    error: float
    steps: int
    batch: float
    drafts: float = 0.0


def fed_per_request(windows: Iterable[Batches]) -> float:
    """Return the tokens that steps fed per request, 1 without drafts."""
    batches = list(windows)
    requests = math.fsum(one.requests for one in batches)
    fed = math.fsum(max(one.fed, one.requests) for one in batches)
    return fed / requests if requests > 0 else 1.0


def saving(
    engines: Sequence[Sequence[Batches]], mix: Mix, bounds: Sequence[int], undrafted: Mix | None = None
) -> Saving | None:
    """Return what was saved; None where too little ran.

    Parameters
    ----------
    engines : sequence of sequence of Batches
        Spans of time of each engine, one after the other.
    mix : Mix
        Of the experts that requests use in a step, with their drafts; at least two groups.
    bounds : sequence of int
        Largest batch size of each bucket.
    undrafted : Mix, optional
        The same without drafts, where there are any.

    Notes
    -----
    A ratio of sums, whose error has two parts: what spans leave over (Cochran, Sampling Techniques, 6.3), those that follow each
    other being alike because the same requests run in them (Newey and West, Econometrica 55, 1987), and what is not known of the mix.
    """
    windows = [window for engine in engines for window in engine]
    if len(windows) < LEAST_WINDOWS:
        return None
    sizes = np.array([window.sizes for window in windows])
    total, active = sizes.sum(0), math.fsum(window.active for window in windows)
    steps = float(total.sum())
    if steps < LEAST_STEPS or active <= 0.0:
        return None
    requests = math.fsum(window.requests for window in windows)
    by_size = steps_by_size(total, requests, bounds)
    expected = expected_active(by_size, mix)
    if expected.value <= 0.0:
        return None
    ratio = active / expected.value
    unions = random_unions(1.0 - mix.unused.sum(0) / mix.tokens.sum(), bounds)
    # by the mix as it was seen, so that what spans leave over adds up to nothing
    scale = active / float(total @ unions)
    left = [
        np.array([window.active - scale * float(np.dot(window.sizes, unions)) for window in engine])
        for engine in engines
    ]
    spread = math.sqrt(len(windows) / (len(windows) - 1) * _variance(left)) / expected.value
    error = math.hypot(spread, ratio * expected.error / expected.value)
    alone = expected_active(by_size, undrafted).value if undrafted is not None else expected.value
    drafts = expected.value / alone - 1.0 if alone > 0.0 else 0.0
    return Saving(1.0 - ratio, error, int(steps), requests / steps, drafts)


def _variance(left: Sequence[Doubles]) -> float:
    """Return the variance of the sum of what is left over, spans of an engine that follow each other being alike."""
    alone = math.fsum(float(one @ one) for one in left)
    shared = 0.0
    for lag in range(1, LAGS + 1):
        together = math.fsum(float(one[lag:] @ one[:-lag]) for one in left if len(one) > lag)
        shared += (1.0 - lag / (LAGS + 1)) * together
    return max(alone, alone + 2.0 * shared)

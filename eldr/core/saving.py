"""What placement saves: active experts of the steps that ran against batches of the same sizes drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


LEAST_WINDOWS = 6
LEAST_STEPS = 100


class Batches(NamedTuple):
    """Decode steps of an engine: in a span of time, or since its start.

    Attributes
    ----------
    active : float
        Distinct experts of a step, mean over the layers, summed over the steps.
    sizes : tuple of float
        Steps by batch size, in buckets.
    """

    active: float
    sizes: tuple[float, ...]


class Saving(NamedTuple):
    """Share of active experts that placement saves.

    Attributes
    ----------
    share : float
        Against random batches of the same sizes; negative if placement makes batches that use more.
    error : float
        Standard error, from how spans of time differ.
    steps : int
    batch : float
        Mean batch size.
    """

    share: float
    error: float
    steps: int
    batch: float


def unions_by_size(unused: Doubles, most: int) -> Doubles:
    """Return the distinct experts that random batches use, by batch size.

    Parameters
    ----------
    unused : ndarray of float64, shape (n_layers, n_experts)
        Chance q that a sequence of the traffic does not use an expert in a step.
    most : int

    Returns
    -------
    ndarray of float64, shape (most + 1,)
        ``E - sum_e q_e ** size``, mean over the layers: batches are drawn with replacement.
    """
    layers, experts = unused.shape
    power = np.ones_like(unused)
    unions = np.empty(most + 1)
    for size in range(most + 1):
        unions[size] = experts - power.sum() / layers
        power *= unused
    return unions


def random_unions(shares: Doubles, bounds: Sequence[int]) -> Doubles:
    """Return the distinct experts that random batches use, by bucket of batch size; within one every size counts alike.

    Parameters
    ----------
    shares : ndarray of float64, shape (n_layers, n_experts)
        Share of generated tokens that choose each expert, 0..1.
    bounds : sequence of int
        Largest batch size of each bucket, ascending, from 1 on.

    Returns
    -------
    ndarray of float64, shape (n_buckets,)
        Mean over the layers.
    """
    unions = unions_by_size(1.0 - np.clip(shares, 0.0, 1.0), bounds[-1])
    return np.array([unions[low + 1 : high + 1].mean() for low, high in pairwise((0, *bounds))])


def saving(windows: Sequence[Batches], unions: Doubles, bounds: Sequence[int]) -> Saving | None:
    """Return what was saved; None where too little ran.

    Parameters
    ----------
    windows : sequence of Batches
        Spans of time, of any engines.
    unions : ndarray of float64, shape (n_buckets,)
        See :func:`random_unions`.
    bounds : sequence of int
        Largest batch size of each bucket.
    """
    if len(windows) < LEAST_WINDOWS:
        return None
    active = np.array([window.active for window in windows])
    sizes = np.array([window.sizes for window in windows])
    expected, steps = sizes @ unions, float(sizes.sum())
    if steps < LEAST_STEPS or expected.sum() <= 0.0 or active.sum() <= 0.0:
        return None
    ratio = float(active.sum() / expected.sum())
    # a ratio of sums: its error from the residuals of the spans (Cochran, Sampling Techniques, 6.3)
    spread = active - ratio * expected
    count = len(windows)
    error = math.sqrt(count / (count - 1) * float(spread @ spread)) / float(expected.sum())
    middles = (np.array((0, *bounds[:-1])) + 1 + np.array(bounds)) / 2
    return Saving(1.0 - ratio, error, int(steps), float(sizes.sum(axis=0) @ middles) / steps)

"""Experts that batches of random requests use, and their error.

Of few long requests the mix looks more uniform than it is: their random batches would use fewer experts than those of all
traffic. So the same is computed without each group of requests in turn, which gives bias and error.

References
----------
.. [1] Busing, Meijer, van der Leeden, "Delete-m Jackknife for Unequal m", Statistics and Computing 9 (1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


class Mix(NamedTuple):
    """Which experts the traffic uses, as far as groups of its requests show.

    Attributes
    ----------
    unused : ndarray of float64, shape (n_groups, n_layers, n_experts)
        Chance that a request does not use an expert in a step, summed over the generated tokens of each group.
    tokens : ndarray of float64, shape (n_groups,)
        Generated tokens of each group, above 0.
    """

    unused: Doubles
    tokens: Doubles


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


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
    """Return the distinct experts of random batches by size bucket.

    Within a bucket every size counts alike.

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


def steps_by_size(buckets: Doubles, requests: float, bounds: Sequence[int]) -> Doubles:
    """Return how many steps had each batch size.

    As far as buckets and the sum of all sizes show.

    Within a bucket every size counts alike, or its largest or smallest counts more, so that sizes add up: full engines
    have steps of their limit only.

    Parameters
    ----------
    buckets : ndarray of float64, shape (n_buckets,)
        Steps by batch size.
    requests : float
        Sum of their sizes.
    bounds : sequence of int
        Largest batch size of each bucket.

    Returns
    -------
    ndarray of float64, shape (largest bound of a step + 1,)
    """
    steps = np.zeros(bounds[-1] + 1)
    ends = np.array([(low + 1, high) for low, high in pairwise((0, *bounds))], dtype=np.float64)
    room = float(buckets @ (ends[:, 1] - ends[:, 0]))
    at = min(1.0, max(0.0, (requests - float(buckets @ ends[:, 0])) / room)) if room else 0.5
    even = 2.0 * min(at, 1.0 - at)
    for n, (low, high) in zip(buckets, pairwise((0, *bounds)), strict=True):
        steps[low + 1 : high + 1] = even * n / (high - low)
        steps[high if at > 0.5 else low + 1] += (1.0 - even) * n
    return np.trim_zeros(steps, "b")


def expected_active(steps: Doubles, mix: Mix) -> Estimate:
    """Return the distinct experts of steps with random batches.

    Summed over the steps.

    Parameters
    ----------
    steps : ndarray of float64, shape (n_sizes,)
        By batch size, from 0 on.
    mix : Mix
        At least two groups.

    Returns
    -------
    Estimate
        Without the bias of few requests; its error is that of the mix.
    """

    def used(unused: Doubles, tokens: float) -> float:
        return float(steps @ unions_by_size(np.clip(unused / tokens, 0.0, 1.0), len(steps) - 1))

    unused, tokens = mix.unused.sum(0), float(mix.tokens.sum())
    groups = len(mix.tokens)
    complete = used(unused, tokens)
    parts = [used(unused - one, tokens - n) for one, n in zip(mix.unused, mix.tokens, strict=True)]
    without, times = np.array(parts), tokens / mix.tokens
    value = groups * complete - float(((1.0 - 1.0 / times) * without).sum())
    pseudo = times * complete - (times - 1.0) * without
    variance = float((np.square(pseudo - value) / (times - 1.0)).mean())
    return Estimate(value, math.sqrt(variance))

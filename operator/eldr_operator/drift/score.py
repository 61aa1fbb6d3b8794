"""How far a window of requests is from what a fit expected: a two-sample test that allows for sessions and bursts. Pure.

Both samples are cut into groups that the baseline fills about evenly. Per group, shares ``p`` (baseline) and ``q`` (window)
differ by chance with a variance of ``m * (f0 / n0 + f / n)``, where ``m`` is their pooled share, ``n0`` and ``n`` are numbers of
requests and ``f`` is by how much requests that come in sessions vary more than single ones would. The sum of the squares in
units of that variance follows a chi-square law. A window counts as over only if the sum is beyond its critical value *and* as
many requests have moved as is worth a fit: of large windows, trifles are significant too. Where requests after the activation
were found to be as the baseline says, they join it: what is expected is then the mean of both, weighted by their certainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import erfc, exp, pi
from operator import add

from eldr_operator.drift.counts import Counts

ALPHA = 1e-5
"""Chance that a window of unchanged traffic is beyond a critical value. A month has at most 43,200 windows of a minute."""
SIGNALS = 3
"""Similarity, clusters, saving: each has its part of ``ALPHA``."""
MOVED = 0.1
"""Least share of requests in other groups than before."""
GROUPS = 10
LEAST = 10
"""Least number of baseline requests per group."""
LEAST_BASELINE = 50
"""A baseline of fewer requests says nothing."""

Reference = tuple[tuple[int, ...], tuple[int, ...]]
"""Requests by group of similarity and of clusters."""
_NONE: Reference = ((), ())


@dataclass(frozen=True, slots=True)
class Feature:
    """How far one distribution is from the expected one.

    Parameters
    ----------
    moved : float
        Share of requests in other groups than expected: total variation.
    ratio : float
        The test's statistic over its critical value.
    """

    moved: float
    ratio: float

    @property
    def score(self) -> float:
        """1 and above: both significant and large enough to matter."""
        return min(self.ratio, self.moved / MOVED)


@dataclass(frozen=True, slots=True)
class Score:
    """What a window says."""

    similarity: Feature
    clusters: Feature

    @property
    def value(self) -> float:
        """1 and above: over."""
        return max(self.similarity.score, self.clusters.score)

    @property
    def moved(self) -> float:
        """Share of requests in other groups than expected, of the distribution that shows more of them."""
        return max(self.similarity.moved, self.clusters.moved)


def compare(
    baseline: Counts,
    window: Counts,
    dispersion: tuple[float, float],
    thinning: float,
    reference: Reference = _NONE,
) -> Score | None:
    """Hold a window against a baseline; None where that is too small, or has another number of clusters.

    Parameters
    ----------
    dispersion : tuple of float
        Of similarity and clusters: variance of a window's shares over that of as many single requests.
    thinning : float
        Share of the requests of its time that the baseline holds, 0..1: of a session it has few.
    reference : Reference, optional
        Requests that were found to be as the baseline says, in its groups; they make it more certain.
    """
    if baseline.requests < LEAST_BASELINE or len(baseline.clusters) != len(window.clusters):
        return None
    features, groups = [], _groups(baseline)
    for first, second, known, factor in zip(
        _sums(groups, baseline), _sums(groups, window), reference, dispersion, strict=True
    ):
        expected = [_Sample(first, 1.0 + (factor - 1.0) * thinning)]
        if len(known) == len(first) and any(known):
            expected.append(_Sample(known, factor))
        features.append(_feature(expected, _Sample(second, factor)))
    return Score(*features)


def compare_spans(
    baseline: Counts, earlier: Counts, window: Counts, dispersion: tuple[float, float]
) -> Score:
    """Hold a span against an earlier one, in the groups of a baseline."""
    groups = _groups(baseline)
    both = zip(_sums(groups, earlier), _sums(groups, window), dispersion, strict=True)
    return Score(*(_feature([_Sample(a, factor)], _Sample(b, factor)) for a, b, factor in both))


def pair_dispersion(baseline: Counts, earlier: Counts, window: Counts) -> tuple[float | None, float | None]:
    """Return by how much two spans of one mix differ more than as many single requests would: 1 if they came alone.

    None where a distribution has one group.
    """
    dispersions: list[float | None] = []
    groups = _groups(baseline)
    for first, second in zip(_sums(groups, earlier), _sums(groups, window), strict=True):
        freedom, one, other = len(first) - 1, _Sample(first, 1.0), _Sample(second, 1.0)
        dispersions.append(_statistic(*one.estimate, *other.estimate) / freedom if freedom else None)
    return dispersions[0], dispersions[1]


def in_groups(baseline: Counts, counts: Counts, more: Reference = _NONE) -> Reference:
    """Return counts in the groups of a baseline, added to others of the same groups."""
    similarity, clusters = (
        tuple(map(add, sums, known)) if len(known) == len(sums) else tuple(sums)
        for sums, known in zip(_sums(_groups(baseline), counts), more, strict=True)
    )
    return similarity, clusters


@cache
def critical(freedom: int, alpha: float = ALPHA / SIGNALS) -> float:
    """Return what a chi-square variable of so many degrees of freedom exceeds with chance ``alpha``."""
    low, high = 0.0, 1.0
    while _tail(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > alpha else (low, middle)
    return high


def _tail(value: float, freedom: int) -> float:
    """Return the chance that a chi-square variable exceeds a value: the finite sums for whole degrees of freedom.

    References
    ----------
    Abramowitz, Stegun: Handbook of Mathematical Functions, 26.4.4 and 26.4.5.
    """
    half = value / 2
    total = term = exp(-half) if freedom % 2 == 0 else 0.0
    if freedom % 2:
        total, term = erfc(half**0.5), exp(-half) * (half / pi) ** 0.5 * 2
        total += term if freedom > 1 else 0.0
    for step in range(2 + freedom % 2, freedom, 2):
        term *= value / step
        total += term
    return total


def _groups(baseline: Counts) -> tuple[list[int], list[int]]:
    """Return the groups of similarity, of about as many requests each, and of clusters.

    Neighbours are joined, whatever they hold: groups that are sorted by the baseline's counts differ from any window's, as those
    that are small by chance lie together.
    """
    even = max(LEAST, baseline.requests / GROUPS)
    return _merge(baseline.similarity, even), _merge(baseline.clusters, LEAST)


def _merge(counts: Sequence[int], least: float) -> list[int]:
    """Return the group of each cell: neighbours are joined until a group holds ``least``."""
    group, held, groups = 0, 0, [0] * len(counts)
    for cell, count in enumerate(counts):
        if held >= least:
            group, held = group + 1, 0
        groups[cell] = group
        held += count
    if held < least and group:
        groups = [min(one, group - 1) for one in groups]
    return groups


def _sums(groups: tuple[list[int], list[int]], counts: Counts) -> tuple[list[int], list[int]]:
    """Return requests by group of similarity and of clusters."""
    both = [0] * (max(groups[0]) + 1), [0] * (max(groups[1]) + 1)
    for sums, of, cells in zip(both, groups, (counts.similarity, counts.clusters), strict=True):
        for group, count in zip(of, cells, strict=True):
            sums[group] += count
    return both


@dataclass(frozen=True, slots=True)
class _Sample:
    """Requests by group, and by how much they vary more than single ones."""

    sums: Sequence[int]
    factor: float

    @property
    def estimate(self) -> tuple[list[float], float]:
        """Shares, and the variance of a share of 1 per unit of it."""
        total = sum(self.sums)
        return [count / total for count in self.sums], self.factor / total


def _feature(expected: Sequence[_Sample], window: _Sample) -> Feature:
    if len(window.sums) < 2 or not sum(window.sums):
        return Feature(0.0, 0.0)
    estimates = [sample.estimate for sample in expected]
    certainty = sum(1 / variance for _, variance in estimates)
    shares = [
        sum(cells[group] / variance for cells, variance in estimates) / certainty
        for group in range(len(window.sums))
    ]
    observed, variance = window.estimate
    moved = sum(abs(a - b) for a, b in zip(shares, observed, strict=True)) / 2
    return Feature(
        moved, _statistic(shares, 1 / certainty, observed, variance) / critical(len(window.sums) - 1)
    )


def _statistic(p: Sequence[float], u: float, q: Sequence[float], v: float) -> float:
    pooled = ((a, b, (a * v + b * u) / (u + v)) for a, b in zip(p, q, strict=True))
    return sum((a - b) ** 2 / (m * (u + v)) for a, b, m in pooled if m > 0)

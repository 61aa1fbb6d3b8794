"""How far a window of requests is from what a fit expected: a two-sample test that allows for sessions and bursts. Pure.

Both samples are cut into groups that the baseline fills about evenly. Per group, shares ``p`` (baseline) and ``q`` (window)
differ by chance with a variance of ``m * (f0 / n0 + f / n)``, where ``m`` is their pooled share, ``n0`` and ``n`` are numbers of
requests and ``f`` is by how much requests that come in sessions vary more than single ones would. The sum of the squares in
units of that variance follows a chi-square law. A window counts as over only if the sum is beyond its critical value *and* as
many requests have moved as is worth a fit: of large windows, trifles are significant too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import erfc, exp, pi

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


@dataclass(frozen=True, slots=True)
class Feature:
    """How far one distribution is from the expected one.

    Parameters
    ----------
    moved : float
        Share of requests in other groups than expected: total variation, 0..1.
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
    """What a window says.

    Parameters
    ----------
    similarity, clusters : Feature
    """

    similarity: Feature
    clusters: Feature

    @property
    def value(self) -> float:
        """1 and above: over."""
        return max(self.similarity.score, self.clusters.score)


def compare(
    baseline: Counts, window: Counts, dispersion: tuple[float, float], thinning: float
) -> Score | None:
    """Hold a window against a baseline.

    Parameters
    ----------
    baseline, window : Counts
    dispersion : tuple of float
        Of similarity and clusters: variance of a window's shares over that of as many single requests.
    thinning : float
        Share of the requests of its time that the baseline holds, 0..1: of a session it has few.

    Returns
    -------
    Score or None
        None where the baseline is too small, or belongs to another number of clusters.
    """
    if baseline.requests < LEAST_BASELINE or len(baseline.clusters) != len(window.clusters):
        return None
    features = []
    for (groups, first, second), factor in zip(
        _features(baseline, baseline, window), dispersion, strict=True
    ):
        thinned = 1.0 + (factor - 1.0) * thinning
        features.append(_feature(_sums(groups, first), _sums(groups, second), thinned, factor))
    return Score(*features)


def pair_dispersion(baseline: Counts, earlier: Counts, window: Counts) -> tuple[float | None, float | None]:
    """Return by how much two spans of one mix differ more than as many single requests would: 1 if they came alone.

    None where a distribution has one group.
    """
    found: list[float | None] = []
    for groups, first, second in _features(baseline, earlier, window):
        one, other = _sums(groups, first), _sums(groups, second)
        found.append(_statistic(one, other, 1.0, 1.0) / (len(one) - 1) if len(one) > 1 else None)
    return found[0], found[1]


def compare_spans(
    baseline: Counts, earlier: Counts, window: Counts, dispersion: tuple[float, float]
) -> Score:
    """Hold a span against an earlier one, in the groups of a baseline."""
    return Score(
        *(
            _feature(_sums(groups, first), _sums(groups, second), factor, factor)
            for (groups, first, second), factor in zip(
                _features(baseline, earlier, window), dispersion, strict=True
            )
        )
    )


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


def _features(
    baseline: Counts, first: Counts, second: Counts
) -> Iterable[tuple[list[int], Sequence[int], Sequence[int]]]:
    """Yield groups and both samples, of similarity and of clusters."""
    even = max(LEAST, baseline.requests / GROUPS)
    yield (
        _merge(baseline.similarity, range(len(baseline.similarity)), even),
        first.similarity,
        second.similarity,
    )
    shares = baseline.clusters
    yield (
        _merge(shares, sorted(range(len(shares)), key=lambda i: (shares[i], i)), LEAST),
        first.clusters,
        second.clusters,
    )


def _merge(counts: Sequence[int], order: Iterable[int], least: float) -> list[int]:
    """Return the group of each cell: neighbours in ``order`` are joined until a group holds ``least``."""
    group, held, groups = 0, 0, [0] * len(counts)
    for cell in order:
        if held >= least:
            group, held = group + 1, 0
        groups[cell] = group
        held += counts[cell]
    if held < least and group:
        groups = [min(one, group - 1) for one in groups]
    return groups


def _sums(groups: Sequence[int], counts: Sequence[int]) -> list[int]:
    sums = [0] * (max(groups) + 1)
    for group, count in zip(groups, counts, strict=True):
        sums[group] += count
    return sums


def _feature(first: Sequence[int], second: Sequence[int], f_first: float, f_second: float) -> Feature:
    n, m = sum(first), sum(second)
    if len(first) < 2 or not n or not m:
        return Feature(0.0, 0.0)
    moved = sum(abs(a / n - b / m) for a, b in zip(first, second, strict=True)) / 2
    return Feature(moved, _statistic(first, second, f_first, f_second) / critical(len(first) - 1))


def _statistic(first: Sequence[int], second: Sequence[int], f_first: float, f_second: float) -> float:
    u, v = f_first / sum(first), f_second / sum(second)
    p = [count / sum(first) for count in first]
    q = [count / sum(second) for count in second]
    pooled = ((a, b, (a * v + b * u) / (u + v)) for a, b in zip(p, q, strict=True))
    return sum((a - b) ** 2 / (m * (u + v)) for a, b, m in pooled if m > 0)

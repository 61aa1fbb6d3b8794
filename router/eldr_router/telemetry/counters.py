"""Counts on the token path, read when metrics are scraped.

A labelled child and a histogram of the Prometheus client cost microseconds each, several times a request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Counter(Collector):
    """A counter with labels; calling it counts one.

    Parameters
    ----------
    name, text : str
        As in Prometheus, without ``_total``.
    labels : sequence of str
    """

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float, {} if labels else {(): 0.0})

    def __call__(self, *labels: str) -> None:
        """Count one."""
        self._values[labels] += 1.0

    def add(self, amount: float, *labels: str) -> None:
        """Count several."""
        self._values[labels] += amount

    def forget(self, *labels: str) -> None:
        """Remove a series."""
        self._values.pop(labels, None)

    def totals(self) -> dict[str, float]:
        """Return the totals as ``name{label="value"}``."""
        totals: dict[str, float] = {}
        for values, total in self._values.items():
            pairs = sorted(zip(self._labels, values, strict=True))
            labels = ",".join(f'{key}="{value}"' for key, value in pairs)
            totals[f"{self._name}_total{{{labels}}}" if labels else f"{self._name}_total"] = total
        return totals

    def collect(self) -> Iterable[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, total in self._values.items():
            family.add_metric(values, total)
        yield family


class Histogram(Collector):
    """A histogram without labels; calling it takes one observation.

    Parameters
    ----------
    name : str
    text : str
    bounds : sequence of float
        Upper bounds of the buckets, ascending.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def __call__(self, value: float) -> None:
        """Take one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        family = HistogramMetricFamily(self._name, self._text)
        buckets, total = [], 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric([], buckets, self._sum)
        yield family

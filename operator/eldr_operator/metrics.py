"""Prometheus metrics of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

FIT_REASONS = (
    *(
        "Accepted",
        "Rejected",
        "Regresses",
        "Failed",
        "JobFailed",
        "JobRefused",
        "NameConflict",
        "TooManyWaiting",
    ),
    *("ReportMissing", "ReportUnreadable", "InvalidField", "Deleted"),
)
"""Of finished fits."""
_STATUSES = ("True", "False", "Unknown")


class Metrics:
    """The metrics, in a registry of their own.

    Attributes
    ----------
    registry : CollectorRegistry
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "eldr_operator_reconcile",
            "Passes of each controller by result: success, conflict, error, unavailable.",
            ["controller", "result"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "eldr_operator_reconcile_seconds",
            "Duration of a pass.",
            ["controller"],
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.writes = Counter(
            "eldr_operator_writes",
            "Mutating requests to the API server.",
            ["kind", "verb"],
            registry=self.registry,
        )
        self.fits = Counter(
            "eldr_operator_fits",
            "Finished fits by the reason of their condition Succeeded.",
            ["reason"],
            registry=self.registry,
        )
        for reason in FIT_REASONS:
            self.fits.labels(reason)  # from 0 on: a series that begins with 1 shows no increase
        self.epoch = Gauge(
            "eldr_operator_epoch",
            "Activations of centroid sets so far.",
            ["namespace", "deployment"],
            registry=self.registry,
        )
        self.acks = Gauge(
            "eldr_operator_routers_acked",
            "Ready routers that have the active set.",
            ["namespace", "deployment"],
            registry=self.registry,
        )

        self.drift = Gauge(
            "eldr_operator_drift_score",
            "Drift score of recent traffic: from 1 on it is drift. NaN without one.",
            ["namespace", "deployment"],
            registry=self.registry,
        )
        self.ready = Gauge(
            "eldr_operator_ready",
            "1 while /readyz answers 200, as it was asked last.",
            registry=self.registry,
        )

    def watch_conditions(self, live: Callable[[], Iterable[tuple[str, Mapping[str, Any]]]]) -> None:
        """Publish conditions of resources, given with their kinds, as they are when somebody asks."""
        self.registry.register(_Conditions(live))

    def watch_blind(self, streams: Callable[[], Iterable[tuple[str, str | None]]]) -> None:
        """Publish what cannot be read, kinds and namespaces, as it is when somebody asks."""
        self.registry.register(_Blind(streams))

    def watch_elsewhere(self, namespaces: Callable[[], Mapping[str, str]]) -> None:
        """Publish which namespaces other releases serve, as it is at each scrape."""
        self.registry.register(_Elsewhere(namespaces))

    def watch_lease(self, acts: Callable[[], bool]) -> None:
        """Publish whether this operator acts, or waits for another one to end."""
        gauge = Gauge("eldr_operator_leader", "1 on the operator that acts.", registry=self.registry)
        gauge.set_function(lambda: float(acts()))

    def forget(self, namespace: str, deployment: str) -> None:
        """Drop the series of a deployment that is gone."""
        for gauge in (self.epoch, self.acks, self.drift):
            gauge.remove_by_labels({"namespace": namespace, "deployment": deployment})


class _Blind(Collector):
    def __init__(self, streams: Callable[[], Iterable[tuple[str, str | None]]]) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        text = "1 for each kind that should be read in a namespace (empty: in all) and is not."
        family = GaugeMetricFamily("eldr_operator_blind", text, labels=["kind", "namespace"])
        for kind, namespace in [*self._streams()]:
            family.add_metric([kind, namespace or ""], 1)
        yield family


class _Elsewhere(Collector):
    def __init__(self, namespaces: Callable[[], Mapping[str, str]]) -> None:
        self._namespaces = namespaces

    def collect(self) -> Iterator[Metric]:
        text = (
            "1 for each namespace in which this operator writes nothing, because another release serves it."
        )
        family = GaugeMetricFamily("eldr_operator_managed_elsewhere", text, labels=["namespace", "by"])
        for namespace, other in self._namespaces().items():
            family.add_metric([namespace, other], 1)
        yield family


class _Conditions(Collector):
    """As kube-state-metrics shows conditions: a series for each status, and 1 for the one that holds."""

    def __init__(self, live: Callable[[], Iterable[tuple[str, Mapping[str, Any]]]]) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "eldr_operator_condition",
            "Conditions of EldrDeployments and EldrFits, with their reasons: 1 for the status that a condition has, 0 for the others.",
            labels=["kind", "namespace", "name", "type", "reason", "status"],
        )
        for kind, live in self._live():
            metadata = live["metadata"]
            for condition in live.get("status", {}).get("conditions", ()):
                for status in _STATUSES:
                    labels = [
                        kind,
                        metadata["namespace"],
                        metadata["name"],
                        condition["type"],
                        condition.get("reason", ""),
                        status.lower(),
                    ]
                    family.add_metric(labels, float(condition["status"] == status))
        yield family

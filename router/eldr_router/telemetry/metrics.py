"""Prometheus metrics, with bounded labels.

Those of an engine go when the engine goes.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.engines.registry import Registry
from eldr_router.placement.placer import Placement
from eldr_router.telemetry.counters import Counter, Histogram

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SIMILARITY = tuple(i / 20 for i in range(21))
_BAND = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class _InFlight(Collector):
    """Reads the registry when it is scraped: nothing to count per request, nothing left of an engine that went."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["role", "endpoint"]
        own = GaugeMetricFamily("eldr_router_in_flight", "Sequences of this router in flight.", labels=labels)
        up = GaugeMetricFamily("eldr_router_endpoint_healthy", "1 unless ejected.", labels=labels)
        reports = GaugeMetricFamily(
            "eldr_router_endpoint_reports", "1 while it reports its load.", labels=labels[1:]
        )
        held = GaugeMetricFamily(
            "eldr_router_kv_held_tokens",
            "KV that this router's sequences are expected to hold.",
            labels=labels[1:],
        )
        size = GaugeMetricFamily("eldr_router_kv_tokens", "KV that an engine can hold.", labels=labels[1:])
        for endpoint in self._registry.endpoints(ROLE_DECODE):
            held.add_metric([endpoint.name], endpoint.tokens)
            reports.add_metric([endpoint.name], float(endpoint.load is not None))
            if endpoint.cache is not None:
                size.add_metric([endpoint.name], endpoint.cache.tokens)
        for role in (ROLE_PREFILL, ROLE_DECODE):
            for endpoint in self._registry.endpoints(role):
                own.add_metric([role, endpoint.name], endpoint.in_flight)
                up.add_metric([role, endpoint.name], float(self._registry.is_healthy(endpoint)))
        yield own
        yield up
        yield reports
        yield held
        yield size


class Metrics:
    """The router's metrics in a registry of their own.

    Parameters
    ----------
    registry : Registry
        Source of the per-engine gauges.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_InFlight(registry))
        self._counts: list[Counter] = []
        self.requests = self._counter("requests", "Requests by outcome.", "outcome")
        self.unauthorized = self._counter("unauthorized", "Requests without a known API key.")
        self.rejected = self._counter("rejected", "Requests without room on a decode engine.", "reason")
        self.placements = self._counter(
            "placements", "Decode placements by policy and why.", "policy", "reason"
        )
        self.prefill_placements = self._counter(
            "prefill_placements", "Prefills by what chose the engine.", "reason"
        )
        self.signatures = self._counter(
            "signatures", "Prefill answers by the quality of their expert counts.", "quality"
        )
        self.placed = self._counter("placed", "Requests placed on each decode engine.", "endpoint")
        self.retries = self._counter("retries", "Attempts given up, by leg and cause.", "leg", "cause")
        self.unsplit = self._counter("whole", "Requests sent whole to a decode engine, by reason.", "reason")
        self.expired = self._counter(
            "expired_results", "Prefill results discarded because their lease ran out."
        )
        self.freed_results = self._counter(
            "freed_results", "Unused prefill results, freed before their lease ended."
        )
        self.broken_streams = self._counter("broken_streams", "Responses that broke after their first byte.")
        self.lost_activations = self._counter(
            "lost_activations", "Activation records that engines overwrote before they were read."
        )
        self.log_records = self._counter("log_records", "Signature log records written.", "decode")
        self.epoch = self._gauge("epoch", "Epoch of the centroids in effect.")
        self.refused_sets = self._gauge("refused_sets", "Centroid sets that this router refuses.")
        unreachable = self._gauge("unreachable_peers", "Other routers that do not answer.")
        unreachable.set_function(lambda: sum(peer.problem is not None for peer in registry.peers.values()))
        self.ready = self._gauge("ready", "1 once /ready answers 200.")
        self.body_bytes = self._gauge("body_bytes", "Memory that bodies of requests and answers hold.")
        self.waiting = self._gauge("waiting", "Requests that wait for room on a decode engine.")
        self.wait = self._histogram("wait_seconds", "How long requests waited for room.", _LATENCY)
        self.band = self._histogram("band_size", "Decode engines in the band.", _BAND)
        self.similarity = self._histogram(
            "similarity", "Cosine to the chosen engine's centroid.", _SIMILARITY
        )
        self.prefill = self._histogram("prefill_seconds", "Arrival to prefill answer.", _LATENCY)
        self.first_byte = self._histogram("first_byte_seconds", "Arrival to first decoded byte.", _LATENCY)
        self.total = self._histogram("request_seconds", "Arrival to the end of the response.", _LATENCY)

    def add(self, collector: Collector) -> None:
        """Add what reads its figures when it is scraped."""
        self._registry.register(collector)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        count = Counter(f"eldr_router_{name}", text, labels)
        self._registry.register(count)
        self._counts.append(count)
        return count

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"eldr_router_{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"eldr_router_{name}", text, bounds)
        self._registry.register(histogram)
        return histogram

    def gave_up(self, leg: str, cause: str) -> None:
        """Count an attempt given up."""
        self.retries(leg, cause)
        if cause == "expired":
            self.expired()

    def place(self, placement: Placement) -> None:
        """Count a placement whose engine began to answer."""
        self.placements(placement.policy, placement.reason)
        self.placed(placement.endpoint.name)
        self.band(placement.n_candidates)
        if placement.similarity is not None:
            self.similarity(placement.similarity)

    def forget(self, names: Iterable[str]) -> None:
        """Remove the series of decode engines that went."""
        for name in names:
            self.placed.forget(name)

    def exposition(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self._registry)

    def totals(self) -> dict[str, float]:
        """Return every counter's total as ``name{label="value"}``."""
        totals: dict[str, float] = {}
        for count in self._counts:
            totals |= count.totals()
        return totals

"""Reports of a simulated engine: vLLM's metrics, ours, activations."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from eldr import contract
from eldr.wire import ExpertCounts, encode_counts

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class EngineMetrics:
    """Prometheus metrics of one engine.

    Parameters
    ----------
    model : str
        Value of the label ``model_name``.
    n_experts : int
        Experts per layer, for the buckets of the union.
    keeps_deadlines : bool
        Whether late pulls and refusals are counted, as an engine with the plug-in does.
    kv_blocks, block_size : int
        KV capacity; 0: it is not reported.
    """

    def __init__(
        self,
        model: str,
        n_experts: int,
        *,
        keeps_deadlines: bool = True,
        kv_blocks: int = 0,
        block_size: int = 16,
    ) -> None:
        self.registry = CollectorRegistry()
        names = ("engine", "model_name")
        values = ("0", model)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, names, registry=self.registry).labels(*values)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, names, registry=self.registry).labels(*values)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, names, registry=self.registry, buckets=buckets).labels(*values)

        self.running = gauge("vllm:num_requests_running", "Requests in the running batch.")
        self.waiting = gauge("vllm:num_requests_waiting", "Requests that wait for KV space.")
        self.kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0..1.")
        self.preemptions = counter(
            "vllm:num_preemptions_total", "Requests that lost their KV blocks for want of space."
        )
        if kv_blocks:
            cache = {
                "num_gpu_blocks": str(kv_blocks),
                "block_size": str(block_size),
                "kv_cache_size_tokens": str(kv_blocks * block_size),
            }
            info = Gauge("vllm:cache_config_info", "KV capacity.", ("engine", *cache), registry=self.registry)
            info.labels("0", *cache.values()).set(1)
        self.prompt_tokens = counter("vllm:prompt_tokens_total", "Prompt tokens processed or pulled.")
        self.generation_tokens = counter("vllm:generation_tokens_total", "Tokens generated.")
        self.kv_expired = counter(
            "vllm:nixl_num_kv_expired_reqs_total", "Prefill results whose lease ended before a pull."
        )
        self.kv_failed = counter("vllm:nixl_num_failed_transfers_total", "Pulls that failed.")
        self._success = Counter(
            "vllm:request_success_total",
            "Requests finished.",
            (*names, "finished_reason"),
            registry=self.registry,
        )
        self._late_pulls = Counter(
            contract.METRIC_LATE_PULLS,
            "Requests whose deadline passed before their KV was there.",
            (*names, "outcome"),
            registry=self.registry if keeps_deadlines else None,
        )
        self.in_flight = Gauge(
            contract.METRIC_IN_FLIGHT,
            "Sequences in flight.",
            registry=self.registry if keeps_deadlines else None,
        )
        self.refused = Counter(
            contract.METRIC_REFUSED,
            "Requests refused because the engine was full.",
            registry=self.registry if keeps_deadlines else None,
        )
        self._values = values
        for outcome in (contract.LATE_PREFILLED, contract.LATE_DISCARDED):
            self._late_pulls.labels(*values, outcome)
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self.itl = histogram("vllm:inter_token_latency_seconds", "Time between tokens.", _SECONDS)
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", _SECONDS)
        share = tuple(n_experts * n / 16 for n in range(1, 17))
        self.active_experts = histogram(
            contract.METRIC_ACTIVE_EXPERTS, "Distinct experts used by a step, mean over the layers.", share
        )
        self.batch_size = histogram(contract.METRIC_BATCH_SIZE, "Requests in a step.", contract.BATCH_BUCKETS)
        self.context = counter(contract.METRIC_CONTEXT_TOKENS, "Tokens of KV that requests of steps held.")
        self.fed_tokens = counter(contract.METRIC_FED_TOKENS, "Tokens that steps fed, drafts included.")
        self.step_seconds = histogram(contract.METRIC_STEP_SECONDS, "Duration of a step.", _SECONDS)

    def finished(self, reason: str) -> None:
        """Count a finished request."""
        self._success.labels(*self._values, reason).inc()

    def late_pull(self, outcome: str) -> None:
        """Count a request whose deadline passed before its KV was there."""
        self._late_pulls.labels(*self._values, outcome).inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class ActivationRing:
    """The newest decode-time activations, read by cursor.

    Parameters
    ----------
    capacity : int
        Records kept.
    """

    def __init__(self, capacity: int) -> None:
        self.boot = uuid.uuid4().hex
        self._ring: deque[tuple[int, str, ExpertCounts]] = deque(maxlen=capacity)
        self._next = 0

    def append(self, request_id: str, counts: ExpertCounts) -> None:
        """Add a record; the oldest one goes when the ring is full."""
        self._ring.append((self._next, request_id, counts))
        self._next += 1

    def read(self, *, after: int, prefix: str, limit: int, boot: str, rate: float = 1.0) -> dict[str, Any]:
        """Return records from cursor ``after`` on.

        See :data:`eldr.contract.PATH_ACTIVATIONS`.
        """
        if (boot and boot != self.boot) or after > self._next:
            after = 0  # a cursor of the engine before this one
        oldest = self._next - len(self._ring)
        lost = max(0, oldest - after)
        start = max(after, oldest)
        records: list[dict[str, Any]] = []
        cursor = start
        for number, request_id, counts in itertools.islice(self._ring, start - oldest, None):
            if len(records) == limit:
                break
            cursor = number + 1
            if request_id.startswith(prefix) and contract.is_sampled(request_id, rate):
                records.append({"request_id": request_id, **encode_counts(counts)})
        return {
            "v": contract.COUNTS_VERSION,
            "boot": self.boot,
            "next": cursor,
            "lost": lost,
            "records": records,
        }

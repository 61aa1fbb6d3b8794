"""What Prometheus sees of the plug-in, by vLLM's own way for KV connectors.

The scheduler half collects, vLLM carries the numbers to the API server with its other statistics, and there they are
observed under the labels that vLLM's metrics have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger

from eldr import contract
from eldr.engine import needs
from eldr.engine.figures import ALL, ALL_VLLM, FULLEST, FULLEST_VLLM

logger = init_logger("vllm.eldr")

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RESULTS = ("exact", "inexact", "unavailable")
OUTCOMES = (contract.LATE_PREFILLED, contract.LATE_DISCARDED)


@contextmanager
def _left_out(what: str) -> Iterator[None]:
    """Leave what fails in this context out of the metrics, and log it once."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, serving goes on
        # as text: vLLM distinguishes two warnings by their arguments, and no two exceptions are equal
        logger.warning_once("ELDR: %s is left out of the metrics: %s", what, repr(error))


class EngineStats(KVConnectorStats):
    """Steps, records and late pulls since the last report."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data or {})
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.data = {
            "active": [],
            "drafted": [],
            "batch": [],
            "fed": [],
            "context": [],
            "seconds": [],
            "records": {},
            "late": {},
            "cut": 0,
            "stopped": 0,
            "balance": [],
        }

    def add_step(  # noqa: PLR0917
        self, union: np.ndarray, drafted: int, requests: int, fed: int, context: int, seconds: float
    ) -> None:
        """Add a step: active experts per layer and of layers that draft, its requests, the tokens fed for them and held by them, its duration."""
        self.data["active"].append([int(n) for n in union])
        self.data["drafted"].append(drafted / len(union))
        self.data["batch"].append(requests)
        self.data["fed"].append(fed)
        self.data["context"].append(context)
        self.data["seconds"].append(seconds)

    def add_balance(self, figures: np.ndarray) -> None:
        """Add what the choice of replicas brought in a step, of shape (L, N_FIGURES); nothing where vLLM's was kept."""
        decided = figures[figures[:, ALL] > 0]
        if len(decided):
            self.data["balance"].append([float(value) for value in decided.mean(0)])

    def add_record(self, result: str) -> None:
        """Count a request by whether its counts are exact, inexact or unavailable."""
        self.data["records"][result] = self.data["records"].get(result, 0) + 1

    def add_late_pull(self, outcome: str) -> None:
        """Count a request whose deadline passed before its KV was there."""
        self.data["late"][outcome] = self.data["late"].get(outcome, 0) + 1

    def add_cut_prompt(self) -> None:
        """Count a prompt that was prefilled here because too little of it would have been pulled."""
        self.data["cut"] += 1

    def set_stopped(self, stopped: str) -> None:
        """Set in every report whether counting has stopped: one may be lost on its way."""
        self.data["stopped"] = int(bool(stopped))

    def take(self) -> EngineStats | None:
        """Return what was collected and begin anew; None if there is nothing."""
        if self.is_empty():
            return None
        taken = EngineStats(self.data)
        self.reset()
        return taken

    def is_empty(self) -> bool:
        """Return whether there is anything to report."""
        with _left_out("a report"):
            return not any(
                self.data[key] for key in ("seconds", "records", "late", "cut", "balance", "stopped")
            )
        return True

    def aggregate(self, other: KVConnectorStats) -> EngineStats:
        """Add another report."""
        with _left_out("a report"):
            for key in ("active", "drafted", "batch", "fed", "context", "seconds", "balance"):
                self.data[key] += other.data[key]
            self.data["cut"] += other.data["cut"]
            self.data["stopped"] |= other.data["stopped"]
            for key in ("records", "late"):
                for value, count in other.data[key].items():
                    self.data[key][value] = self.data[key].get(value, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM's periodic log line shows; there is more for Prometheus."""
        with _left_out("the line of the log"):
            return {f"ELDR {key} records": n for key, n in self.data["records"].items()}
        return {}


def stopped() -> EngineStats:
    """Return a report of nothing but that counting has stopped."""
    stats = EngineStats()
    stats.set_stopped("stopped")
    return stats


class EnginePromMetrics(KVConnectorPromMetrics):
    """Prometheus metrics of the plug-in.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    metric_types, label_names, label_values
        As vLLM passes them; see ``KVConnectorPromMetrics``.
    """

    def __init__(
        self,
        config: Any,
        metric_types: dict[Any, Any],
        label_names: list[str],
        label_values: dict[int, list[object]],
    ) -> None:
        super().__init__(config, metric_types, label_names, label_values)
        with _left_out("everything"):
            self._create(config, label_names, label_values)

    def _create(self, config: Any, label_names: list[str], label_values: dict[int, list[object]]) -> None:
        experts = max(1, config.model_config.get_num_experts())
        share = sorted({experts * n / 16 for n in range(1, 17)})
        # the label `layer` would multiply the histogram: per layer there is a plain sum, to be divided by _count
        self._active = self._histogram(
            contract.METRIC_ACTIVE_EXPERTS,
            "Distinct experts used by a decode step, mean over the layers.",
            share,
        )
        self._batch = self._histogram(
            contract.METRIC_BATCH_SIZE, "Requests in a decode step.", contract.BATCH_BUCKETS
        )
        self._fed = self._counter(
            contract.METRIC_FED_TOKENS, "Tokens that decode steps fed: one of each request, and its drafts."
        )
        self._drafted = self._counter(
            contract.METRIC_DRAFT_EXPERTS,
            "Experts that layers which draft loaded, over the number of other layers, summed over the steps.",
        )
        self._context = self._counter(
            contract.METRIC_CONTEXT_TOKENS,
            "Tokens of KV that the requests of decode steps held, summed over the steps.",
        )
        self._seconds = self._histogram(contract.METRIC_STEP_SECONDS, "Duration of a decode step.", _SECONDS)
        self._layers = self._counter(
            contract.METRIC_LAYER_ACTIVE_EXPERTS,
            "Distinct experts used per layer, summed over the decode steps.",
            "layer",
        )
        self._records = self._counter(
            contract.METRIC_RECORDS, "Requests whose counts are exact, inexact, or unavailable.", "result"
        )
        self._late = self._counter(
            contract.METRIC_LATE_PULLS, "Requests whose deadline passed before their KV was there.", "outcome"
        )
        self._cut = self._counter(
            contract.METRIC_CUT_PROMPTS,
            "Prompts prefilled here because vLLM would have pulled a sliding window one block short.",
        )
        parallel = config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
        self._fullest = self._of_choices(
            contract.METRIC_FULLEST_RANK,
            "Experts of the rank with most of them in a step, mean over the layers.",
            [bound / ranks for bound in share],
        )
        self._ranks = self._of_choices(
            contract.METRIC_RANKS, "Experts of all ranks in a step, mean over the layers.", share
        )
        self._counting = self._gauge_cls(
            name=contract.METRIC_COUNTING,
            documentation="1 while this engine counts, 0 from when that has failed: its log says why.",
            labelnames=label_names,
            multiprocess_mode="min",
        )
        info = self._gauge_cls(
            name=contract.METRIC_INFO,
            documentation="The engine's version, and whether ELDR's plug-in was tested with it.",
            labelnames=[*label_names, "vllm", "tested"],
            multiprocess_mode="max",
        )
        known = contract.INFO_TESTED if needs.tested() else contract.INFO_UNTESTED
        for values in label_values.values():
            self._cut.labels(*values)
            self._counting.labels(*values).set(1)
            info.labels(*values, needs.version(), known).set(1)
            for result in RESULTS:
                self._records.labels(*values, result)
            for outcome in OUTCOMES:
                self._late.labels(*values, outcome)

    def _histogram(self, name: str, text: str, buckets: Any) -> dict[int, Any]:
        metric = self._histogram_cls(
            name=name, documentation=text, buckets=list(buckets), labelnames=self._labelnames
        )
        return {index: metric.labels(*values) for index, values in self.per_engine_labelvalues.items()}

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        return self._counter_cls(name=name, documentation=text, labelnames=[*self._labelnames, *labels])

    def _of_choices(self, name: str, text: str, buckets: list[float]) -> Any:
        return self._histogram_cls(
            name=name, documentation=text, buckets=buckets, labelnames=[*self._labelnames, "choice"]
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Observe one report; vLLM does it where it hands out tokens, so that an exception would end every answer."""
        with _left_out("a report"):
            self._observe(transfer_stats_data, engine_idx)

    def _observe(self, transfer_stats_data: dict[str, Any], engine_idx: int) -> None:
        data, values = transfer_stats_data, self.per_engine_labelvalues[engine_idx]
        if data["stopped"]:  # also where the rest of the report fails
            self._counting.labels(*values).set(0)
        for union, batch, seconds in zip(data["active"], data["batch"], data["seconds"], strict=True):
            self._active[engine_idx].observe(sum(union) / len(union))
            self._batch[engine_idx].observe(batch)
            self._seconds[engine_idx].observe(seconds)
        if data["active"]:
            self._fed.labels(*values).inc(sum(data["fed"]))
            self._drafted.labels(*values).inc(sum(data["drafted"]))
            self._context.labels(*values).inc(sum(data["context"]))
            for layer, total in enumerate(np.sum(data["active"], axis=0)):
                self._layers.labels(*values, str(layer)).inc(int(total))
        for figures in data["balance"]:
            for metric, balanced, vllm in (
                (self._fullest, FULLEST, FULLEST_VLLM),
                (self._ranks, ALL, ALL_VLLM),
            ):
                metric.labels(*values, contract.CHOICE_BALANCED).observe(figures[balanced])
                metric.labels(*values, contract.CHOICE_VLLM).observe(figures[vllm])
        for result, count in data["records"].items():
            self._records.labels(*values, result).inc(count)
        for outcome, count in data["late"].items():
            self._late.labels(*values, outcome).inc(count)
        self._cut.labels(*values).inc(data["cut"])

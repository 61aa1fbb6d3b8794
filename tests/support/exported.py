"""The series that the product exports, from the registries that serve them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from eldr.sim.telemetry import EngineMetrics
from eldr_operator import metrics as operator
from eldr_router.admin.locality import LocalityMetrics
from eldr_router.engines.registry import Registry
from eldr_router.engines.spec import EndpointSpec
from eldr_router.placement.locality import Locality
from eldr_router.telemetry import metrics as router

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
Series = dict[str, set[str]]
"""Labels by the name of a series, with its suffix."""


def exported() -> Series:
    """Return every series of the operator, of a router, and of engines, simulated ones and those with the plug-in."""
    registries = (_operator(), _router(), EngineMetrics("m", 8).registry, _plugin())
    return {name: labels for registry in registries for name, labels in _series(registry).items()}


def _series(registry: CollectorRegistry) -> Series:
    found: Series = {}
    for collector in list(registry._collector_to_names):
        labels = {*getattr(collector, "_labelnames", ()), *getattr(collector, "_labels", ())}
        for family in collector.collect():
            for suffix in _SUFFIXES[family.type]:
                named = found.setdefault(family.name + suffix, set())
                named |= labels | ({"le"} if suffix == "_bucket" else set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _operator() -> CollectorRegistry:
    made = operator.Metrics()
    resource: dict[str, Any] = {
        "metadata": {"namespace": "n", "name": "x"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    made.watch_conditions(lambda: [("EldrDeployment", resource)])
    made.watch_blind(lambda: [("Pod", None)])
    made.watch_lease(lambda: True)
    return made.registry


def _router() -> CollectorRegistry:
    registry = Registry(time.monotonic)
    registry.replace("decode", [EndpointSpec("decode", "d", "h", 1, 0)])
    made = router.Metrics(registry)
    made.add(LocalityMetrics(Locality(), registry))
    return made._registry


def _plugin() -> CollectorRegistry:
    """Return the registry that vLLM's classes would write to, with the least of vLLM."""
    registry = CollectorRegistry()
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_num_experts=lambda: 8),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
    )
    classes = {made: partial(_made, made, registry) for made in (Gauge, Counter, Histogram)}
    with _stubbed():
        from eldr.engine.metrics import EnginePromMetrics

        EnginePromMetrics(config, classes, ["model_name", "engine"], {0: ["m", "0"]})
    return registry


def _made(made: Any, registry: CollectorRegistry, **options: Any) -> Any:
    return made(**options, registry=registry)


class _PromMetrics:
    """What the plug-in's class has from vLLM's ``KVConnectorPromMetrics``."""

    def __init__(
        self, config: Any, types: dict[Any, Any], names: list[str], values: dict[int, list[Any]]
    ) -> None:
        self._gauge_cls, self._counter_cls, self._histogram_cls = (
            types[Gauge],
            types[Counter],
            types[Histogram],
        )
        self._labelnames, self.per_engine_labelvalues = names, values


@contextmanager
def _stubbed() -> Iterator[None]:
    """Have two modules of vLLM, for as long as the plug-in's is imported and used."""
    before = set(sys.modules)
    package, logger, metrics = map(ModuleType, ("vllm", "vllm.logger", "vllm.metrics"))
    package.__version__ = "0.32.0"
    logger.init_logger = lambda _: SimpleNamespace(warning_once=_fail)
    metrics.KVConnectorPromMetrics, metrics.KVConnectorStats = _PromMetrics, object
    sys.modules["vllm.logger"] = logger
    sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.metrics"] = metrics
    sys.modules["vllm"] = package
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("vllm") or name == "eldr.engine.metrics":
                del sys.modules[name]


def _fail(*words: object) -> None:
    raise AssertionError(words)

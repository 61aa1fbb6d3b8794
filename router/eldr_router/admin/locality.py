"""Steps of decode engines, as the admin port reports them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from eldr.contract import ROLE_DECODE
from eldr.core.step_time import StepTime
from eldr_router.engines.registry import Registry
from eldr_router.placement.locality import Locality


class LocalityMetrics(Collector):
    """Reads at the scrape what is known of the decode engines' steps."""

    def __init__(self, locality: Locality, registry: Registry) -> None:
        self._locality = locality
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        step_times, experts = self._locality.step_times, self._locality.n_experts
        expected = GaugeMetricFamily(
            "eldr_router_expected_active_experts", "Expected distinct experts of a step, mean over the layers.", labels=["endpoint"]
        )  # fmt: skip
        state = unions_state(self._locality, self._registry)
        for name, active in state["active_experts"].items() if state else ():
            expected.add_metric([name], active)
        step_time = GaugeMetricFamily(
            "eldr_router_step_time_model_seconds",
            "Constants of an engine's step time.",
            labels=["endpoint", "constant"],
        )
        if experts is not None and step_times.learned is not None:
            names = [endpoint.name for endpoint in self._registry.endpoints(ROLE_DECODE)]
            for name, one in zip(names, step_times.of(names, experts), strict=True):
                for constant, value in _constants(one, step_times.learned.context).items():
                    step_time.add_metric([name, constant], value)
        share, error = step_times.expert_share() or (math.nan, math.nan)
        saving = self._locality.savings.latest
        yield expected
        yield step_time
        yield GaugeMetricFamily(
            "eldr_router_saving",
            "Share of active experts saved against random batches of the same sizes, over the last minutes.",
            math.nan if saving is None else saving.share,
        )
        yield GaugeMetricFamily(
            "eldr_router_saving_error", "Its standard error.", math.nan if saving is None else saving.error
        )
        yield GaugeMetricFamily(
            "eldr_router_expert_share", "Share of a step that reading experts takes.", share
        )
        yield GaugeMetricFamily("eldr_router_expert_share_error", "Its standard error.", error)


def unions_state(locality: Locality, registry: Registry) -> dict[str, Any] | None:
    """Return the expected unions; None where no policy or shape asks.

    The policy asks for them; the first signature shows the model's shape.
    """
    unions = locality.unions
    if unions is None:
        return None
    decode = registry.endpoints(ROLE_DECODE)
    names = [endpoint.name for endpoint in decode]
    outlook = unions.outlook(None, names, registry.totals(decode))
    return {
        "layers": unions.shape.layers,
        "requests": unions.requests,
        "tables": unions.reporters,
        "active_experts": {
            name: round(active, 3) for name, active in zip(names, outlook.active, strict=True)
        },
    }


def saving_state(locality: Locality) -> dict[str, float] | None:
    """Return what placement saves lately; None until enough is known."""
    latest = locality.savings.latest
    if latest is None:
        return None
    return {
        "share": round(latest.share, 4),
        "error": round(latest.error, 4),
        "steps": latest.steps,
        "batch": round(latest.batch, 2),
        **({"drafts": round(latest.drafts, 4)} if latest.drafts else {}),
    }


def step_time_state(locality: Locality, registry: Registry) -> dict[str, Any] | None:
    """Return the learned step-time model; None until reports suffice."""
    step_times, experts = locality.step_times, locality.n_experts
    learned, share = step_times.learned, step_times.expert_share()
    if learned is None or experts is None or share is None:
        return None
    names = [endpoint.name for endpoint in registry.endpoints(ROLE_DECODE)]
    return {
        **_constants(learned.pool, learned.context),
        "windows": learned.windows,
        "noise": round(learned.noise, 4),
        "expert_share": round(share[0], 4),
        "expert_share_error": round(share[1], 4),
        "engines": {
            name: _constants(one, learned.context)
            for name, one in zip(names, step_times.of(names, experts), strict=True)
        },
    }


def _constants(step_time: StepTime, context: float) -> dict[str, float]:
    """Return the constants; what one more request takes includes its context, of so many tokens in the mean."""
    return {
        "fixed": round(step_time.fixed, 9),
        "per_expert": round(step_time.per_expert, 9),
        "per_request": round(step_time.per_request + step_time.per_token * context, 9),
        "per_token": round(step_time.per_token, 12),
    }

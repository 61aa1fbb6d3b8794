"""Drift within minutes: a spec, requests, and looks at the cluster that take less time than its steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from eldr import contract
from eldr_demo.load import Workload
from eldr_demo.simulated import replay
from tests.e2e.conftest import NAME
from tests.support.kube import Kube

REFIT = {
    "minSamples": 300,
    "drift": {"windowRequests": 100, "windowSeconds": 5, "consecutiveWindows": 2, "coolDownMinutes": 60},
}


def workload(records: Sequence[int]) -> Workload:
    """Return logged requests that replay these records."""
    return Workload("drifting", replay(records), logged=True)


def routing(kube: Kube) -> dict[str, Any]:
    return json.loads(kube.get("ConfigMap", contract.routing_name(NAME))["data"][contract.ROUTING_KEY])


def detected(kube: Kube, status: str) -> bool:
    return kube.condition(contract.KIND_DEPLOYMENT, NAME, "DriftDetected").get("status") == status


def is_active(kube: Kube, fit: str) -> bool:
    return (routing(kube)["active"] or {}).get("fit") == fit

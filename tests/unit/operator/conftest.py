from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eldr import contract
from eldr_operator.fits import planner
from eldr_operator.locality.router_view import RouterPod, RouterView
from eldr_operator.models import CentroidSet, EldrDeployment, EldrFit, parse
from tests.unit.operator.drifted import Life

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def make_cr() -> Callable[..., EldrDeployment]:
    def make(
        status: dict[str, Any] | None = None, created: str = "2026-11-01T00:00:00Z", **spec
    ) -> EldrDeployment:
        base: dict[str, Any] = {"model": {"uri": "m"}, "engine": {"type": "Simulator"}}
        metadata = {
            "name": "x",
            "namespace": "ns",
            "uid": "cr",
            "generation": 3,
            "creationTimestamp": created,
        }
        return parse(EldrDeployment, {"metadata": metadata, "spec": base | spec, "status": status or {}})

    return make


@pytest.fixture
def make_set() -> Callable[..., CentroidSet]:
    def make(fit: str, k: int = 2) -> CentroidSet:
        shards = [{"name": f"{fit}-0", "sha256": "00"}]
        return CentroidSet.model_validate({"fit": fit, "digest": f"sha256:{fit}", "k": k, "shards": shards})

    return make


@pytest.fixture
def make_fit(make_set) -> Callable[..., EldrFit]:
    def make(
        name: str,
        reason: str = "Accepted",
        finished: str = "2026-11-21T10:00:00Z",
        k: int = 2,
        *,
        automatic: bool = True,
        **spec,
    ) -> EldrFit:
        states = {"Accepted": "True", "Running": "Unknown", "Queued": "Unknown", "Pending": ""}
        status: dict[str, Any] = {}
        if reason != "Pending":
            condition = {
                "type": "Succeeded",
                "status": states.get(reason, "False"),
                "reason": reason,
                "message": "",
            }
            status = {"conditions": [condition | {"lastTransitionTime": finished}]}
            if condition["status"] != "Unknown":
                status["finishedAt"] = finished
        if reason == "Accepted":
            status |= make_set(name, k).model_dump(mode="json", exclude={"fit"})
        metadata = {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-21T09:00:00Z",
            "ownerReferences": [
                {"kind": contract.KIND_DEPLOYMENT, "uid": "cr"} | ({"controller": True} if automatic else {})
            ],
        }
        body = {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}} | spec, "status": status}
        return parse(EldrFit, body | {"apiVersion": contract.API_VERSION})

    return make


@pytest.fixture
def make_vllm(make_cr):
    return lambda engine=None, **spec: make_cr(engine={"type": "vLLM"} | (engine or {}), **spec)


@pytest.fixture
def life(now):
    return lambda **options: Life(now, **options)


@pytest.fixture
def router(now):
    def make(name="r0", active="", staged="", refused=(), problem="", complaint="", age=3600):
        pod = RouterPod(name, "127.0.0.1", now - timedelta(seconds=age))
        digests = {f"sha256:{fit}": "shape differs" for fit in refused}
        return RouterView(
            pod,
            problem=problem,
            complaint=complaint,
            policy="ELDR",
            active=active and f"sha256:{active}",
            staged=staged and f"sha256:{staged}",
            refused=digests,
        )

    return make


@pytest.fixture
def ago(now):
    return lambda seconds: now - timedelta(seconds=seconds)


@pytest.fixture
def on_the_minute(monkeypatch):
    """Let fits by schedule begin with their minute."""
    monkeypatch.setattr(planner, "MOST_DELAY", timedelta(0))

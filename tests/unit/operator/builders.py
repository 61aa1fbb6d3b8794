"""Resources and views of routers, as most tests need them."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from eldr import contract
from eldr_operator.locality.router_view import RouterPod, RouterView
from eldr_operator.models import CentroidSet, EldrDeployment, EldrFit, parse

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
POD = RouterPod("r0", "127.0.0.1", None)
STATE = {
    "policy": "JSQ",
    "active": None,
    "staged": None,
    "refused": [],
    "samples": 0,
    "router": "r",
    "counters": {},
}
"""The least that a router's state has."""


HUGE = 10**400
ODD = [
    None, True, -1, 0, 1.5, HUGE, -HUGE, 1e300, math.inf, -math.inf, math.nan, "", "x", "a\0b\ud800", "x" * 100_000, [],
    [1], [[]], [None], [{}], {}, {"a": {}}, {"digest": 5}, {"digest": "\0"}, [{"digest": [], "reason": {}}],
]  # fmt: skip
"""What does not belong where it stands."""


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def make_cr(
    status: dict[str, Any] | None = None, created: str = "2026-11-01T00:00:00Z", **spec: Any
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


def make_vllm(engine: dict[str, Any] | None = None, **spec: Any) -> EldrDeployment:
    return make_cr(engine={"type": "vLLM"} | (engine or {}), **spec)


def make_set(fit: str, k: int = 2) -> CentroidSet:
    shards = [{"name": f"{fit}-0", "sha256": "00"}]
    return CentroidSet.model_validate({"fit": fit, "digest": f"sha256:{fit}", "k": k, "shards": shards})


def make_fit(
    name: str,
    reason: str = "Accepted",
    finished: str = "2026-11-21T10:00:00Z",
    k: int = 2,
    *,
    automatic: bool = True,
    **spec: Any,
) -> EldrFit:
    states = {"Accepted": "True", "Running": "Unknown", "Queued": "Unknown"}
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
    owner = {"kind": contract.KIND_DEPLOYMENT, "uid": "cr"} | ({"controller": True} if automatic else {})
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-21T09:00:00Z",
        "ownerReferences": [owner],
    }
    body = {"metadata": metadata, "spec": {"deploymentRef": {"name": "x"}} | spec, "status": status}
    return parse(EldrFit, body | {"apiVersion": contract.API_VERSION})


def router(name="r0", active="", staged="", refused=(), problem="", complaint="", age=3600):
    pod = RouterPod(name, "127.0.0.1", ago(age))
    return RouterView(
        pod,
        problem=problem,
        complaint=complaint,
        policy="ELDR",
        active=active and f"sha256:{active}",
        staged=staged and f"sha256:{staged}",
        refused={f"sha256:{fit}": "shape differs" for fit in refused},
    )


def merged(into, more):
    """Return a value with another one laid over it."""
    if not (isinstance(into, dict) and isinstance(more, dict)):
        return more
    return into | {key: merged(into.get(key), value) for key, value in more.items()}


def nested(field, value):
    """Return what a field is in the spec, by its path."""
    for name in reversed(field.split(".")):
        value = {name: value}
    return value

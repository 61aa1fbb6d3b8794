"""A fit that really runs, and sets that no router may load."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from eldr import centroids, contract
from eldr.sim import traces
from eldr_demo.arrivals import ClosedLoop
from tests.e2e.conftest import IN_FLIGHT, NAME, SLOW, System, failed, fit, traffic
from tests.e2e.connections import Connection, Connections
from tests.support.policies import Peer, admits
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]
ENGINE_SPEED = SLOW


async def send(system: System, count: int) -> None:
    """Send requests until so many were answered; none may fail."""
    async with traffic(system, ClosedLoop(IN_FLIGHT), logged=True) as load:
        while len(load.outcomes) < count:
            await asyncio.sleep(0.05)
    assert failed(load) == []


def active(system: System) -> str | None:
    return (system.get("eldr")["status"].get("centroids", {}).get("active") or {}).get("fit")


def pods_by(system: System) -> dict[str, tuple[Peer, str, str]]:
    """Return every pod by name: who it is, its address, and what it is called below."""
    namespaces = system.kube.request("GET", "/api/v1/namespaces")["items"]
    spaces = {each["metadata"]["name"]: each["metadata"]["labels"] for each in namespaces}
    found = {}
    for pod in system.kube.request("GET", "/api/v1/pods")["items"]:
        space, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels", {})
        kind = "fit" if contract.LABEL_FIT in labels else labels.get(contract.LABEL_ROLE, "operator")
        peer = Peer(space, spaces[space], labels)
        found[pod["metadata"]["name"]] = peer, pod["status"].get("podIP", ""), kind
    return found


def check_policy(system: System, seen: Collection[Connection]) -> None:
    """Hold connections that pods have opened against the policies, as a network that enforced them would have."""
    pods, policies = pods_by(system), system.kube.list("NetworkPolicy")
    targets = {
        address: (peer, kind) for peer, address, kind in pods.values() if kind in ("prefill", "decode")
    }
    told = set()
    for source, address, port in seen:
        if source not in pods or address not in targets:
            continue  # of another test's cluster
        (peer, _, kind), (target, role) = pods[source], targets[address]
        assert admits(policies, peer, target, port), f"{source} could not reach {address}:{port}"
        told.add((kind, role, port))
    router, engine, admin = contract.PORT_ROUTER, contract.PORT_ENGINE, contract.PORT_ADMIN
    assert told >= {
        ("prefill", "prefill", engine),
        ("prefill", "decode", engine),
    }
    # these ask within milliseconds, mostly too short to be seen
    operator, job = (
        next(peer for peer, _, kind in pods.values() if kind == wanted) for wanted in ("operator", "fit")
    )
    prefill = [peer for peer, kind in targets.values() if kind == "prefill"]
    assert all(admits(policies, who, peer, admin) for who in (operator, job) for peer in prefill)
    decode = next(peer for peer, kind in targets.values() if kind == "decode")
    assert admits(policies, operator, decode, router)
    assert not admits(policies, operator, decode, engine)


async def test_a_fit_runs_as_a_job_and_its_set_becomes_active(system: System):
    with Connections() as connections:
        await send(system, 600)
        system.apply(fit("first"))
        wait_for(
            lambda: system.condition("ef", "first", "Succeeded").get("status") == "True",
            "the fit",
            90,
            show=lambda: system.condition("ef", "first", "Succeeded"),
        )
        wait_for(lambda: active(system) == "first", "activation")
    check_policy(system, connections.seen)
    system.wait("CentroidsActive", status="True", reason="Active")
    assert {(s["policy"], s["active"]["fit"]) for s in system.states()} == {("MarginalUnion", "first")}
    await send(system, 60)


def a_set(**fields: object) -> centroids.CentroidSet:
    captured = traces.load()
    centers = captured.prefill_counts[[0, 200, 400]].reshape(3, -1).astype(np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    made = centroids.CentroidSet(
        model=NAME, n_layers=4, n_experts=64, top_k=4, kept=(0, 1, 2, 3), weighting="counts",
        weights=np.ones((4, 64), np.float32), centers=centers, samples=9, created=1.0,
    )  # fmt: skip
    return replace(made, **fields)


def plant(
    system: System,
    name: str,
    data: bytes,
    *,
    k: int = 3,
    sha256: str | None = None,
    digest: str | None = None,
) -> None:
    """Create an EldrFit and write what its Job would have written: the Job finds the report and leaves it."""
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    digest = digest or centroids.digest(data)
    shard = contract.shard_name(name, digest, 0)
    pointer = {"fit": name, "digest": digest, "k": k, "shards": [{"name": shard, "sha256": sha256}]}
    report = {"version": 1, "verdict": "Accepted", "reason": "Better", "message": "planted", "set": pointer,
              "samples": 9, "layers_kept": [0, 1, 2, 3], "layers": 4, "experts": 64, "rho": 0.8, "weighting": "counts",
              "imbalance": 1.0, "cluster_sizes": [3, 3, 3], "reduction": 0.1, "baseline_reduction": None, "seconds": 1.0}  # fmt: skip
    system.apply(fit(name))
    uid = system.get("ef", name)["metadata"]["uid"]
    owner = {"apiVersion": contract.API_VERSION, "kind": contract.KIND_FIT, "name": name, "uid": uid}
    labels = {contract.LABEL_DEPLOYMENT: NAME, contract.LABEL_FIT: name}
    contents = {
        shard: {"binaryData": {contract.SHARD_KEY: base64.b64encode(data).decode()}},
        contract.report_name(name): {"data": {contract.REPORT_KEY: json.dumps(report)}},
    }
    for map_name, content in contents.items():
        metadata = {"name": map_name, "labels": labels, "ownerReferences": [owner]}
        system.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, "metadata": metadata, **content}
        )


def truncated() -> dict:
    return {"data": centroids.dump(a_set())[:-40]}


def wrong_digest() -> dict:
    return {"data": centroids.dump(a_set()), "sha256": "0" * 64}


def wrong_k() -> dict:
    return {"data": centroids.dump(replace(a_set(), centers=a_set().centers[:2]))}


def other_model() -> dict:
    return {"data": centroids.dump(a_set(model="gpt-oss"))}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (truncated, "truncated"),
        pytest.param(wrong_digest, "damaged", marks=pytest.mark.costly),
        pytest.param(wrong_k, "holds 2 centroids, the routing table says 3", marks=pytest.mark.costly),
        pytest.param(other_model, "fitted for model 'gpt-oss'", marks=pytest.mark.costly),
    ],
)
async def test_a_set_that_must_not_be_used_is_refused_and_the_old_one_serves_on(system: System, make, reason):
    assert active(system) == "first"
    name = make.__name__.replace("_", "-")
    time.sleep(1.1)  # fits are ordered by whole seconds of their finish
    plant(system, name, **make())
    try:
        system.wait("CentroidsActive", reason="Refused", text=reason)
        assert active(system) == "first"
        assert {(s["policy"], s["active"]["fit"]) for s in system.states()} == {("MarginalUnion", "first")}
        await send(system, 40)
    finally:
        system.cluster.kubectl("delete", "ef", name, "--wait=true", "--timeout=60s")
    system.wait("CentroidsActive", status="True", reason="Active")

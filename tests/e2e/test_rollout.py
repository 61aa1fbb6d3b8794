"""Engines that are replaced by others, under traffic, on nodes without a free accelerator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract
from eldr_demo.arrivals import Poisson
from eldr_kube.cluster import Cluster
from tests.e2e.conftest import NAME, SPEED, System, failed, traffic, until
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(900)]

FAILED = "vllm:nixl_num_failed_transfers_total"
ARGS = ["--speed", str(SPEED)]
RATE = 8.0
"""Requests per second: half of the engines can serve them."""
Step = Callable[[System], None]
"""Changes something, and returns when that is over."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with eight accelerators each."""
    with Cluster(nodes=2, audit=True) as started:
        yield started


@pytest.fixture(scope="module")
def full(system: System) -> System:
    """All accelerators are taken, by two prefill and two decode engines, one of each on either node."""
    roles: dict[str, Any] = {}
    for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE):
        apart = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {contract.LABEL_DEPLOYMENT: NAME, contract.LABEL_ROLE: role}},
            "nodeTaintsPolicy": "Honor",
        }
        template = {"spec": {"topologySpreadConstraints": [apart]}}
        roles[role] = {"gpus": 4, "replicas": 2, "podTemplate": template}
    patch(roles)(system)
    return system


def patch(spec: dict[str, Any]) -> Step:
    """Change the spec, until the deployment is Ready for it."""

    def step(system: System) -> None:
        system.kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": spec})
        wait_for(lambda: settled(system), f"Ready with {spec}", 300, lambda: system.get("eldr")["status"])

    return step


def settled(system: System) -> bool:
    deployment = system.get("eldr")
    ready = system.condition("eldr", NAME, "Ready")
    return (
        ready.get("status") == "True" and ready["observedGeneration"] == deployment["metadata"]["generation"]
    )


def keys(system: System) -> set[str]:
    return {pod["metadata"]["labels"][contract.LABEL_KV] for pod in system.engines()}


class Witness:
    """What was seen while engines were replaced."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.failed: dict[str, float] = {}
        self.whole: dict[str, float] = {}

    async def watch(self, system: System) -> None:
        """Look again and again."""
        while True:
            await asyncio.to_thread(self.look, system)
            await asyncio.sleep(0.2)

    def look(self, system: System) -> None:
        self.keys |= keys(system)
        for address in system.addresses(contract.ROLE_DECODE):
            self._read(f"http://{address}:{contract.PORT_ENGINE}", FAILED, {}, self.failed)
        for address in system.addresses(contract.ROLE_PREFILL):
            url = f"http://{address}:{contract.PORT_ADMIN}"
            self._read(url, "eldr_router_whole_total", {"reason": "kv_key"}, self.whole)

    @staticmethod
    def _read(url: str, name: str, labels: dict[str, str], into: dict[str, float]) -> None:
        try:
            text = httpx.get(f"{url}{contract.PATH_METRICS}", timeout=10).text
        except httpx.TransportError:
            return
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        found = sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())
        into[url] = max(found, into.get(url, 0.0))


async def under_traffic(system: System, *steps: Step, rate: float = RATE, tokens: int = 60) -> Witness:
    """Take steps under traffic; no request may fail, and no KV move between engines that are unlike."""
    witness = Witness()
    async with traffic(system, Poisson(rate), logged=False, tokens=tokens) as load:
        watching = asyncio.create_task(witness.watch(system))
        await asyncio.to_thread(until, load, 60)
        for step in steps:
            await asyncio.to_thread(step, system)
        await asyncio.to_thread(until, load, len(load.outcomes) + 40)
        watching.cancel()
    assert failed(load) == []
    assert not any(witness.failed.values()), "engines that are unlike exchanged KV"
    return witness


async def test_all_engines_are_replaced_on_full_nodes_and_back(full: System):
    before = keys(full)
    await under_traffic(full, patch({"engine": {"args": [*ARGS, "--kv-key=new"]}}))
    assert not keys(full) & before
    witness = await under_traffic(full, patch({"engine": {"args": ARGS}}))
    assert keys(full) == before
    assert len(witness.keys) == 2


async def test_one_role_is_replaced_before_the_other(full: System):
    args = {"args": ["--kv-key=new"]}
    witness = await under_traffic(full, patch({"decode": args}), patch({"prefill": args}))
    assert any(witness.whole.values()), "decode engines that no prefill engine may serve had no requests"
    assert len(witness.keys) == 2
    assert len(keys(full)) == 1
    witness = await under_traffic(full, patch({"decode": {"args": []}, "prefill": {"args": []}}))
    assert len(witness.keys) == 2


async def test_a_node_is_drained(full: System):
    def drained(system: System) -> None:
        node = system.pods(contract.ROLE_DECODE)[0]["spec"]["nodeName"]
        options = "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"
        system.cluster.kubectl("drain", node, *options)
        assert node not in {pod["spec"]["nodeName"] for pod in system.engines()}
        system.cluster.kubectl("uncordon", node)
        wait_for(lambda: settled(system), "Ready again", 300, lambda: system.get("eldr")["status"])

    await under_traffic(full, drained)

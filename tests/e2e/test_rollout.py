"""Engines that are replaced by others, under traffic, on a node without a free accelerator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract
from tests.e2e.conftest import NAME, SPEED, System, traffic
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.long, pytest.mark.timeout(900)]

FAILED = "vllm:nixl_num_failed_transfers_total"


@pytest.fixture
def full(system: System) -> Iterator[System]:
    """All eight accelerators are taken: by two prefill engines, and by three decode engines with two each."""
    system.kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": {"decode": {"gpus": 2}}})
    wait_for(lambda: settled(system), "Ready", 300)
    yield system
    system.kube.merge(contract.KIND_DEPLOYMENT, NAME, {"spec": {"decode": {"gpus": 1}}})


def settled(system: System) -> bool:
    deployment = system.get("eldr")
    ready = system.condition("eldr", NAME, "Ready")
    return (
        ready.get("status") == "True" and ready["observedGeneration"] == deployment["metadata"]["generation"]
    )


def keys(system: System) -> set[str]:
    pods = (*system.pods(contract.ROLE_PREFILL), *system.pods(contract.ROLE_DECODE))
    return {pod["metadata"]["labels"][contract.LABEL_KV] for pod in pods}


class Witness:
    """What was seen while engines were replaced."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.failed: dict[str, float] = {}
        self.whole: dict[str, float] = {}

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


async def rolled(system: System, *changes: dict[str, Any]) -> Witness:
    """Change the spec under traffic, each time until the rollout is over; no request may fail."""
    witness = Witness()
    async with traffic(system, 12.0, logged=False) as load:
        while len(load.outcomes) < 20:
            await asyncio.sleep(0.05)
        for change in changes:
            begun, before = time.monotonic(), len(load.outcomes)
            await asyncio.to_thread(system.kube.merge, contract.KIND_DEPLOYMENT, NAME, {"spec": change})

            def over() -> bool:
                witness.look(system)
                return settled(system)

            await asyncio.to_thread(wait_for, over, "the rollout to be over", 300.0)
            print(f"{change}: {time.monotonic() - begun:.0f} s, {len(load.outcomes) - before} requests")  # noqa: T201
        after = len(load.outcomes)
        while len(load.outcomes) < after + 40:
            await asyncio.sleep(0.05)
    assert [outcome.error for outcome in load.outcomes if outcome.error] == []
    assert not any(witness.failed.values()), "engines that are unlike exchanged KV"
    return witness


async def test_all_engines_are_replaced_on_a_full_node_and_back(full: System):
    before = keys(full)
    await rolled(full, {"engine": {"args": ["--speed", str(SPEED), "--kv-key=new"]}})
    assert not keys(full) & before
    witness = await rolled(full, {"engine": {"args": ["--speed", str(SPEED)]}})
    assert keys(full) == before
    assert len(witness.keys) == 2


async def test_one_role_is_replaced_before_the_other(full: System):
    args = {"args": ["--kv-key=new"]}
    witness = await rolled(full, {"decode": args}, {"prefill": args})
    assert any(witness.whole.values()), "decode engines that no prefill engine may serve had no requests"
    assert len(witness.keys) == 2
    assert len(keys(full)) == 1
    witness = await rolled(full, {"decode": {"args": []}, "prefill": {"args": []}})
    assert len(witness.keys) == 2

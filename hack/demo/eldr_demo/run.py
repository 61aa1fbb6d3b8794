"""The demo: JSQ, bootstrap fit, ELDR, a shift of the workload, a manual re-fit, all under the same traffic."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console

from eldr import contract
from eldr_demo import objects
from eldr_demo.engines import Engines, Mix
from eldr_demo.load import Load
from eldr_demo.report import Phase
from eldr_demo.telemetry import Sampler


@dataclass(slots=True)
class Demo:
    """A running demo.

    Parameters
    ----------
    view : View
    engines : Engines
    console : Console
    """

    view: objects.View
    engines: Engines
    console: Console
    phases: list[Phase] = field(default_factory=list)
    activations: dict[str, float] = field(default_factory=dict)
    load: Load = field(init=False)
    sampler: Sampler = field(init=False)

    async def run(self) -> None:
        """Run every step; raises where one does not happen."""
        size = self.engines.settings
        await self._deploy()
        async with self._traffic():
            await self._measure("JSQ", "first")
            self._say("logging signatures; the bootstrap fit runs when there are enough")
            self.load.switch(self.engines.workload("bootstrap", "first", logged=True))
            await self._activated(f"{objects.NAME}-bootstrap", "bootstrap fit")
            await self._measure("ELDR", "first")
            await self._measure("shifted", "second")
            self._say("logging signatures of the new mix, then a manual EldrFit")
            self.load.switch(self.engines.workload("re-fit", "second", logged=True))
            begun = asyncio.get_running_loop().time()
            await objects.until(
                self._served("re-fit", size.samples), "enough traffic for a re-fit", size.fit_seconds
            )
            # what was logged before is of the first mix; the shifted phase between was not logged
            minutes = math.ceil((asyncio.get_running_loop().time() - begun) / 60)
            manifest = objects.manual_fit(minutes)
            created = await self.view.kubectl("create", "-o", "name", "-f", "-", stdin=manifest)
            await self._activated(created.strip().rsplit("/", 1)[1], "manual fit")
            await self._measure("re-fitted", "second")
        await self._idle()

    async def _deploy(self) -> None:
        manifest = objects.deployment(self.engines.manifest())
        await self.view.kubectl("apply", "-f", "-", stdin=manifest)
        self._say(f"applied {contract.KIND_DEPLOYMENT} {objects.NAME}; waiting until it is Ready")
        ready = await objects.until(self._ready, "EldrDeployment Ready", self.engines.settings.start_seconds)
        self._say(f"Ready: {ready.get('message')}")

    async def _ready(self) -> dict[str, Any] | None:
        condition = await self.view.condition("eldr", objects.NAME, "Ready")
        return condition if condition.get("status") == "True" else None

    @contextlib.asynccontextmanager
    async def _traffic(self) -> AsyncIterator[None]:
        size = self.engines.settings
        routers = await self.view.urls(contract.ROLE_PREFILL, contract.PORT_ROUTER)
        decoders = await self.view.urls(contract.ROLE_DECODE, contract.PORT_ENGINE)
        self.load = Load(lambda: routers, objects.NAME, self.engines.arrivals(), size.tokens)
        self.sampler = Sampler(lambda: decoders)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.load.run(stop)), group.create_task(self.sampler.run(stop))]
            try:
                yield
            finally:
                # requests in flight are answered first, also where a step has failed: they are no failures of theirs
                stop.set()
                await asyncio.wait(tasks)

    async def _measure(self, name: str, mix: Mix) -> None:
        loop, size = asyncio.get_running_loop(), self.engines.settings
        self.load.switch(self.engines.workload(name, mix, logged=False))
        self._say(f"phase {name}: settling {size.settle:.0f} s, measuring {size.measure:.0f} s")
        await asyncio.sleep(size.settle)
        begun = loop.time()
        await asyncio.sleep(size.measure)
        policy = (await self.view.get("eldr"))["status"]["router"]["policyInEffect"]
        self.phases.append(Phase(name, policy, begun, loop.time()))

    def _served(self, phase: str, requests: int) -> Callable[[], Awaitable[bool]]:
        async def enough() -> bool:
            return sum(o.phase == phase for o in self.load.outcomes) >= requests

        return enough

    async def _activated(self, fit: str, label: str) -> None:
        """Wait until a fit's set is active on every router."""
        loop = asyncio.get_running_loop()

        async def finished() -> dict[str, Any] | None:
            with contextlib.suppress(Exception):
                condition = await self.view.condition("ef", fit, "Succeeded")
                return (
                    condition
                    if condition.get("status") in {"True", "False"} and _is_final(condition)
                    else None
                )
            return None

        verdict = await objects.until(finished, f"EldrFit {fit} finished", self.engines.settings.fit_seconds)
        self._say(f"{label}: {verdict['reason']}: {verdict['message']}")
        if verdict["status"] != "True":
            raise RuntimeError(f"EldrFit {fit}: {verdict['reason']}: {verdict['message']}")

        async def active() -> bool:
            status = (await self.view.get("eldr"))["status"]
            return (status.get("centroids", {}).get("active") or {}).get("fit") == fit

        await objects.until(active, f"activation of {fit}", 60)
        self.activations[label] = loop.time()
        self._say(f"{label}: active on every router")

    async def _idle(self) -> None:
        """Check that nothing is left in flight: in the engines, and in the routers' counts."""
        engines = await self.view.urls(contract.ROLE_DECODE, contract.PORT_ENGINE)
        async with httpx.AsyncClient(timeout=10.0) as client:

            async def none_running() -> bool:
                pages = [(await client.get(f"{url}/metrics")).text for url in engines]
                return all("vllm:num_requests_running{" in page and _running(page) == 0 for page in pages)

            await objects.until(none_running, "an empty pool", 30)

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{asyncio.get_running_loop().time():9.1f}[/dim] {text}", highlight=False)


def _is_final(condition: dict[str, Any]) -> bool:
    return condition.get("reason") not in {"Running", "Queued", "Pending"}


def _running(metrics: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("vllm:num_requests_running{")
    )

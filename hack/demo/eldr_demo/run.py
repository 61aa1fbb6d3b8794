"""The demo: policies in turn, fits, a shift of the workload, all under the same traffic."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console

from eldr import contract
from eldr.clients import UNBOUNDED
from eldr_demo import basis, objects
from eldr_demo.engines import Engines
from eldr_demo.load import Load
from eldr_demo.plan import Fit, Measure
from eldr_demo.report import Phase
from eldr_demo.telemetry import Sampler
from eldr_demo.timeline import Timeline


@dataclass(slots=True)
class Demo:
    """A running demo.

    Attributes
    ----------
    timeline : Timeline
        What the operator did when the mix had shifted.
    """

    view: objects.View
    engines: Engines
    console: Console
    phases: list[Phase] = field(default_factory=list)
    activations: dict[str, float] = field(default_factory=dict)
    timeline: Timeline = field(init=False)
    load: Load = field(init=False)
    sampler: Sampler = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _policy: str = ""
    _admins: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.view, self._say)

    async def run(self) -> None:
        """Run every step; raises where one does not happen."""
        await self._deploy()
        async with self._traffic():
            for step in self.engines.plan:
                if step.mix == "second":
                    self.timeline.begin()
                if isinstance(step, Measure):
                    await self._measure(step)
                else:
                    await self._fit(step)
        await self._idle()

    async def _deploy(self) -> None:
        spec = self.engines.manifest()
        self._policy = next(step.policy for step in self.engines.plan if isinstance(step, Measure))
        spec["router"] = {**spec.get("router", {}), "policy": self._policy}
        manifest = objects.deployment(spec)
        await self.view.kubectl("apply", "-f", "-", stdin=manifest)
        self._say(f"applied {contract.KIND_DEPLOYMENT} {objects.NAME}; waiting until it is Ready")
        self._say(
            f"  with short windows, because a demo lasts minutes: refit.drift {json.dumps(spec['refit']['drift'])}"
        )
        ready = await objects.until(self._ready, "EldrDeployment Ready", self.engines.settings.start_seconds)
        self._say(f"Ready: {ready.get('message')}")

    async def _ready(self) -> dict[str, Any] | None:
        condition = await self.view.condition("eldr", objects.NAME, "Ready")
        return condition if condition.get("status") == "True" else None

    @contextlib.asynccontextmanager
    async def _traffic(self) -> AsyncIterator[None]:
        size = self.engines.settings
        routers = await self.view.urls(contract.ROLE_PREFILL, contract.PORT_ROUTER)
        self._admins = await self.view.urls(contract.ROLE_PREFILL, contract.PORT_ADMIN)
        decoders = await self.view.urls(contract.ROLE_DECODE, contract.PORT_ENGINE)
        self.load = Load(lambda: routers, objects.NAME, self.engines.arrivals(), size.tokens)
        self.sampler = Sampler(lambda: decoders)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            work = (self.load.run(stop), self.sampler.run(stop), self.timeline.watch(stop))
            tasks = [group.create_task(each) for each in work]
            try:
                yield
            finally:
                # requests in flight are answered first, also where a step has failed: they are no failures of theirs
                stop.set()
                await asyncio.wait(tasks)

    async def _measure(self, step: Measure) -> None:
        loop, size = asyncio.get_running_loop(), self.engines.settings
        await self._patch(step.policy)
        self.load.switch(self.engines.workload(step.name, step.mix, logged=False))
        self._say(f"{step.name}: settling {size.settle:.0f} s, measuring {size.measure:.0f} s")
        await asyncio.sleep(size.settle)
        before = await basis.read(self._admins)
        begun = loop.time()
        await asyncio.sleep(size.measure)
        ended = loop.time()
        basis.check(step, await basis.read(self._admins) - before)
        self.phases.append(Phase(step, begun, ended))
        await self.timeline.note(step.name)

    async def _patch(self, policy: str) -> None:
        """Change the policy as a user would, under the running traffic."""
        if policy == self._policy:
            return
        patch = json.dumps({"spec": {"router": {"policy": policy}}})
        await self.view.kubectl("patch", "eldr", objects.NAME, "--type=merge", "-p", patch)

        async def in_effect() -> bool:
            status = (await self.view.get("eldr"))["status"]
            return bool(status.get("router", {}).get("policyInEffect") == policy)

        await objects.until(in_effect, f"policy {policy} in effect", 60)
        self._policy = policy
        self._say(f"kubectl patch eldr {objects.NAME}: policy {policy} is in effect on every router")

    async def _fit(self, step: Fit) -> None:
        self._say(f"logging signatures of the {step.mix} mix; the operator makes the {step.label} by itself")
        self.load.switch(self.engines.workload(step.label, step.mix, logged=True))

        async def made() -> str | None:
            return next(iter(await self.view.fits(step.trigger)), None)

        seconds = self.engines.settings.fit_seconds
        fit = await objects.until(made, f"an EldrFit by {step.trigger}", seconds)
        await self._activated(fit, step.label)

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
        async with httpx.AsyncClient(timeout=10.0, limits=UNBOUNDED) as client:

            async def none_running() -> bool:
                pages = [(await client.get(f"{url}/metrics")).text for url in engines]
                return all("vllm:num_requests_running{" in page and _running(page) == 0 for page in pages)

            await objects.until(none_running, "an empty pool", 30)

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._began:7.1f} s[/dim] {text}", highlight=False)


def _is_final(condition: dict[str, Any]) -> bool:
    return condition.get("reason") not in {"Running", "Queued", "Pending"}


def _running(metrics: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith("vllm:num_requests_running{")
    )

"""Asks a container's probes for as long as one run of it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from eldr_kube.agent.probes import Exec, Health, ask
from eldr_kube.agent.state import ContainerState

Object = dict[str, Any]
Note = Callable[[str, str, str], None]
"""``note(type, reason, message)`` makes an event of the pod."""


class UnhealthyError(Exception):
    """A startup or liveness probe has failed too often: the container has to be restarted."""

    def __init__(self, kind: str, probe: Object) -> None:
        super().__init__(f"failed {kind} probe")
        self.probe = probe


@dataclass(frozen=True, slots=True)
class Prober:
    """The probes of one container.

    Parameters
    ----------
    state : ContainerState
        Whose ``started`` and ``ready`` it keeps.
    execute : callable
        Runs a command inside the container.
    changed : callable
        Called after every change of the state.
    note : callable
    """

    state: ContainerState
    address: str
    client: httpx.AsyncClient
    execute: Exec
    changed: Callable[[], None]
    note: Note

    async def run(self) -> None:
        """Probe for ever; UnhealthyError if the container has to be restarted."""
        spec = self.state.spec
        if startup := spec.get("startupProbe"):
            await self._until_started(startup)
        self.state.started = True
        self.state.ready = "readinessProbe" not in spec
        self.changed()
        probing = []
        if readiness := spec.get("readinessProbe"):
            probing.append(self._readiness(readiness))
        if liveness := spec.get("livenessProbe"):
            probing.append(self._liveness(liveness))
        tasks = [asyncio.ensure_future(probe) for probe in probing]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_started(self, probe: Object) -> None:
        health = Health(probe, eager=True)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while (healthy := await self._observe("Startup", probe, health)) is None:
            await asyncio.sleep(health.delay)
        if not healthy:
            raise UnhealthyError("startup", probe)

    async def _readiness(self, probe: Object) -> None:
        health = Health(probe, eager=True)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            ready = await self._observe("Readiness", probe, health) is True
            if ready != self.state.ready:
                self.state.ready = ready
                self.changed()
            await asyncio.sleep(health.delay)

    async def _liveness(self, probe: Object) -> None:
        health = Health(probe, eager=False)
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while await self._observe("Liveness", probe, health) is not False:
            await asyncio.sleep(health.delay)
        raise UnhealthyError("liveness", probe)

    async def _observe(self, kind: str, probe: Object, health: Health) -> bool | None:
        success, message = await ask(probe, self.state.spec, self.address, self.client, self.execute)
        before = health.healthy
        healthy = health.observe(success, asyncio.get_running_loop().time())
        if not success and (kind == "Liveness" or (healthy is False and before is not False)):
            self.note("Warning", "Unhealthy", f"{kind} probe failed: {message}")
        return healthy

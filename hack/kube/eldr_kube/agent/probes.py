"""Probes: how one is asked, and what a row of answers means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

Object = dict[str, Any]
Exec = Callable[[list[str], float], Awaitable[bool]]
"""``await exec(command, timeout)`` runs a command inside the container and tells whether it exited with 0."""


@dataclass(slots=True)
class Verdict:
    """Thresholds of one probe.

    Attributes
    ----------
    success_threshold, failure_threshold : int
        Equal answers in a row that change the verdict.
    healthy : bool or None
        None until the first threshold is reached.
    """

    success_threshold: int = 1
    failure_threshold: int = 3
    healthy: bool | None = None
    _last: bool | None = None
    _row: int = 0

    def observe(self, answer: bool) -> bool | None:
        """Count an answer and return the verdict."""
        self._row = self._row + 1 if answer is self._last else 1
        self._last = answer
        if self._row >= (self.success_threshold if answer else self.failure_threshold):
            self.healthy = answer
        return self.healthy

    @classmethod
    def of(cls, probe: Object) -> Verdict:
        """Return the thresholds that a probe's specification sets."""
        return cls(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))


async def ask(probe: Object, container: Object, address: str, client: httpx.AsyncClient, run: Exec) -> bool:
    """Ask a probe once and return whether it succeeded."""
    timeout = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return await run(probe["exec"]["command"], timeout)
    if target := probe.get("httpGet"):
        scheme, host = target.get("scheme", "HTTP").lower(), target.get("host") or address
        url = f"{scheme}://{host}:{port_number(target['port'], container)}{target.get('path', '/')}"
        headers = {header["name"]: header["value"] for header in target.get("httpHeaders", [])}
        try:
            answer = await client.get(url, headers=headers, timeout=timeout)
        except httpx.HTTPError:
            return False
        return 200 <= answer.status_code < 400
    if target := probe.get("tcpSocket"):
        host = target.get("host") or address
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(host, port_number(target["port"], container))
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True
    return False


def port_number(port: int | str, container: Object) -> int:
    """Return a probe's port, looked up by name where it is one."""
    if isinstance(port, int):
        return port
    named = {item.get("name"): item["containerPort"] for item in container.get("ports", [])}
    return int(named[port]) if port in named else int(port)

"""Probes: how one is asked, and what a row of answers means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

Object = dict[str, Any]
Exec = Callable[[list[str], float], Awaitable[tuple[bool, str]]]
"""``await exec(command, timeout)`` runs a command inside the container: whether it exited with 0, and what it printed."""

EAGER_SECONDS = 0.5


class Health:
    """What the answers of one probe amount to. Pure: the time is an argument.

    Until it succeeds, a startup or readiness probe is asked more often than its period, so that pods become ready
    early; failures count once per period all the same.

    Parameters
    ----------
    probe : dict
        The probe's specification.
    eager : bool
        Whether an early success is worth asking for.
    """

    def __init__(self, probe: Object, *, eager: bool) -> None:
        self._period = float(probe.get("periodSeconds", 10))
        self._successes_needed = int(probe.get("successThreshold", 1))
        self._failures_allowed = int(probe.get("failureThreshold", 3))
        self._eager = eager
        self._successes = 0
        self._failures = 0
        self._counted: float | None = None
        self.healthy: bool | None = None

    def observe(self, success: bool, now: float) -> bool | None:
        """Take an answer in; return True or False once a threshold is reached, None before that."""
        if success:
            self._failures = 0
            self._counted = None
            self._successes += 1
            if self._successes >= self._successes_needed:
                self.healthy = True
            return self.healthy
        self._successes = 0
        between = self._counted is not None and now - self._counted < self._period - EAGER_SECONDS / 2
        if not (self._eager and self.healthy is not True and between):
            self._failures += 1
            self._counted = now
        if self._failures >= self._failures_allowed:
            self.healthy = False
        return self.healthy

    @property
    def delay(self) -> float:
        """Seconds until the next question."""
        return min(self._period, EAGER_SECONDS) if self._eager and self.healthy is not True else self._period


async def ask(
    probe: Object, container: Object, address: str, client: httpx.AsyncClient, run: Exec
) -> tuple[bool, str]:
    """Ask once: whether it succeeded, and what to tell a user."""
    timeout = float(probe.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(timeout):
            if "exec" in probe:
                return await run(probe["exec"]["command"], timeout)
            if "httpGet" in probe:
                return await _http(probe["httpGet"], container, address, client)
            if "tcpSocket" in probe:
                target = probe["tcpSocket"]
                port = port_number(target["port"], container)
                _, writer = await asyncio.open_connection(target.get("host") or address, port)
                writer.close()
                return True, ""
    except TimeoutError:
        return False, f"no answer within {timeout:g} s"
    except (OSError, httpx.HTTPError, ValueError) as error:
        return False, f"{type(error).__name__}: {error}"
    return False, f"probes of kind {', '.join(sorted(probe))} are not known to the node agent"


async def _http(
    target: Object, container: Object, address: str, client: httpx.AsyncClient
) -> tuple[bool, str]:
    host, scheme = target.get("host") or address, target.get("scheme", "HTTP").lower()
    url = f"{scheme}://{host}:{port_number(target['port'], container)}{target.get('path', '/')}"
    headers = {"User-Agent": "kube-probe/1.36", "Connection": "close"}
    headers |= {header["name"]: header["value"] for header in target.get("httpHeaders", [])}
    answer = await client.get(url, headers=headers, timeout=None)
    return 200 <= answer.status_code < 400, f"HTTP probe failed with statuscode: {answer.status_code}"


def port_number(port: int | str, container: Object) -> int:
    """Return a probe's port, looked up by name where it is one; ValueError if the container has no port of that name."""
    if isinstance(port, int):
        return port
    named = {item.get("name"): item["containerPort"] for item in container.get("ports", [])}
    if port not in named and not port.isdigit():
        raise ValueError(f"container {container['name']} has no port named {port!r}")
    return int(named.get(port, port))

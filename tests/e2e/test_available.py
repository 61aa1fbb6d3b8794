"""What ``Available`` says while a constant client is served, or is not: engines hang, and the API server refuses routers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx
import pytest

from eldr import contract
from tests.e2e.conftest import NAME, System, kill, process, usual
from tests.e2e.meanwhile import Meanwhile
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

SPEC = usual(0.1) | {"prefill": {"replicas": 1}, "decode": {"replicas": 2}}
FAILS_SECONDS = 30.0
"""After requests have failed for so long, ``Available`` must be False."""
LATE_SECONDS = 10.0
"""That an operator on a busy machine may take to see it."""
ANSWER_SECONDS = 5.0


class Seen(NamedTuple):
    """At a moment: whether a request was served, and what ``Available`` was after it."""

    at: float
    is_served: bool
    available: str


class Client(Meanwhile):
    """Sends one request after another to the routers behind the Service while its ``with`` block runs."""

    def __init__(self, system: System) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self._system = system

    def until(self, available: str, *, is_served: bool) -> float:
        """Wait until requests fare like this and ``Available`` says so; return for how many seconds requests had fared like this."""
        begun = time.monotonic()

        def is_so() -> bool:
            last = next(iter(self.seen[-1:]), None)
            return last is not None and last.at > begun and last[1:] == (is_served, available)

        wait_for(is_so, f"requests served: {is_served}, Available {available}", 180, lambda: self.seen[-20:])
        return self.seen[-1].at - self.since(is_served=is_served)

    def since(self, *, is_served: bool) -> float:
        """Return since when requests have fared like this."""
        others = [seen.at for seen in self.seen if seen.is_served != is_served]
        return others[-1] if others else self.seen[0].at

    def _look(self) -> None:
        is_served = any(self._is_served(router) for router in self._system.routers())
        available = self._system.condition("eldr", NAME, "Available").get("status", "")
        self.seen.append(Seen(time.monotonic(), is_served, available))

    @staticmethod
    def _is_served(router: str) -> bool:
        body = {"model": NAME, "prompt": "hello", "max_tokens": 2}
        try:
            return httpx.post(f"{router}/v1/completions", json=body, timeout=ANSWER_SECONDS).is_success
        except httpx.TransportError:
            return False


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with Client(system) as made:
        made.until("True", is_served=True)
        yield made


@contextmanager
def hung(system: System, role: str) -> Iterator[None]:
    """All engines of a role stand still: they take connections and never answer."""
    addresses = system.addresses(role)
    for address in addresses:
        kill(address, role, signal.SIGSTOP)
    try:
        yield
    finally:
        for address in addresses:
            if engine := process(address, role):  # a liveness probe may have ended it
                os.kill(engine, signal.SIGCONT)


@pytest.mark.parametrize("role", [contract.ROLE_DECODE, contract.ROLE_PREFILL])
def test_engines_that_hang_make_it_false_and_come_back(system: System, client: Client, role: str):
    with hung(system, role):
        assert client.until("False", is_served=False) < FAILS_SECONDS + LATE_SECONDS
    client.until("True", is_served=True)


def test_routers_that_the_api_server_refuses_and_engines_that_move_make_it_false(
    system: System, client: Client
):
    """A ServiceAccount that is made anew: no token of the earlier one is accepted."""
    system.cluster.kubectl("delete", "serviceaccount", f"{NAME}-router")
    system.wait("Ready", status="False", reason="RouterUnauthorized")
    assert client.seen[-1][1:] == (True, "True"), "routers serve on with the engines that they know"
    for pod in system.pods(contract.ROLE_DECODE):
        system.kube.delete("Pod", pod["metadata"]["name"])
    assert client.until("False", is_served=False) < FAILS_SECONDS + LATE_SECONDS
    system.wait("Available", status="False", reason="RouterUnauthorized")
    found = system.condition("eldr", NAME, "Available")
    for pod in system.pods(contract.ROLE_PREFILL):
        assert pod["metadata"]["name"] in found["message"]
        system.kube.delete("Pod", pod["metadata"]["name"])  # the remedy that the message names
    client.until("True", is_served=True)
    wait_for(system.ready, "Ready again", 120)

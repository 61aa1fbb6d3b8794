"""The whole system on the embedded cluster: chart, operator, routers and simulated engines as pods."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from eldr import contract
from eldr.sim import traces
from eldr_demo.arrivals import Arrivals
from eldr_demo.load import Load, Workload
from eldr_demo.simulated import replay
from eldr_kube import left
from eldr_kube.cluster import Cluster
from tests.support.kube import Kube, delete_crds
from tests.support.processes import ELDR, wait_for

CHART = Path(__file__).parents[2] / "charts" / "eldr"
NAME = "e2e"
SPEED = 2.0
KINDS = ("en", "zh", "python")
"""Of text, as many as decode engines: a set is accepted only where it pays beyond doubt."""
IN_FLIGHT, SLOW = 45, 5.0
"""Requests at a time for whom a set must pay, and engines so slow that a starved machine keeps up: of batches of 5 most sets are refused."""
SECONDS = 90.0
_KINDS = {"eldr": contract.KIND_DEPLOYMENT, "ef": contract.KIND_FIT}


class System:
    """A deployed EldrDeployment, seen from outside; looks through HTTP, as a kubectl process for each would keep a core busy."""

    def __init__(self, cluster: Cluster, kube: Kube) -> None:
        self.cluster = cluster
        self.kube = kube

    def get(self, kind: str, name: str = NAME) -> dict[str, Any]:
        return self.kube.get(_KINDS[kind], name)

    def apply(self, *manifests: dict[str, Any]) -> None:
        self.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def condition(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        conditions = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == condition), {})

    def wait(
        self, condition: str, *, status: str | None = None, reason: str | None = None, text: str = ""
    ) -> None:
        def met() -> bool:
            found = self.condition("eldr", NAME, condition)
            return (
                (status is None or found.get("status") == status)
                and (reason is None or found.get("reason") == reason)
                and text in found.get("message", "")
            )

        what = f"condition {condition} {status} {reason} {text!r}"
        wait_for(met, what, SECONDS, show=lambda: self.cluster.kubectl("get", "eldr,ef", "-o", "yaml"))

    def doctor(self) -> subprocess.CompletedProcess[str]:
        """Run `eldr doctor` on the deployment."""
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        command = [str(ELDR), "doctor", NAME, "--json"]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    def pods(self, role: str) -> list[dict[str, Any]]:
        selector = f"{contract.LABEL_DEPLOYMENT}={NAME},{contract.LABEL_ROLE}={role}"
        return [
            pod
            for pod in self.kube.list("Pod", selector)
            if pod["status"].get("podIP") and not pod["metadata"].get("deletionTimestamp")
        ]

    def engines(self) -> list[dict[str, Any]]:
        """Return the pods of both roles."""
        return [*self.pods(contract.ROLE_PREFILL), *self.pods(contract.ROLE_DECODE)]

    def deploy(self, spec: dict[str, Any]) -> None:
        """Create the deployment, and wait until it is ready."""
        head = {"apiVersion": contract.API_VERSION, "kind": contract.KIND_DEPLOYMENT}
        self.apply({**head, "metadata": {"name": NAME}, "spec": spec})
        wait_for(self.ready, "EldrDeployment Ready", SECONDS, lambda: self.get("eldr"))

    def addresses(self, role: str) -> list[str]:
        return [pod["status"]["podIP"] for pod in self.pods(role)]

    def routers(self) -> list[str]:
        """Return the routers behind the Service."""
        return [
            f"http://{pod['status']['podIP']}:{contract.PORT_ROUTER}"
            for pod in self.pods(contract.ROLE_PREFILL)
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions", [])
            )
        ]

    def uids(self) -> set[str]:
        """Return who the pods are."""
        return {pod["metadata"]["uid"] for pod in self.engines()}

    def authorization(self) -> dict[str, str]:
        """Return the header of the routers' admin ports."""
        raw = self.kube.get("Secret", contract.admin_secret_name(NAME))["data"][contract.SECRET_TOKEN_KEY]
        return {"authorization": f"Bearer {base64.b64decode(raw).decode()}"}

    def states(self) -> list[dict[str, Any]]:
        """The state of every router that answers."""
        states, headers = [], self.authorization()
        for address in self.addresses(contract.ROLE_PREFILL):
            try:
                answer = httpx.get(
                    f"http://{address}:{contract.PORT_ADMIN}{contract.PATH_STATE}", headers=headers
                )
            except httpx.TransportError:
                continue
            states.append(answer.raise_for_status().json())
        return states

    def idle(self) -> bool:
        """Whether all routers agree that nothing is in flight."""
        states = self.states()
        return bool(states) and all(
            engine["in_flight"] == 0 for state in states for engine in (*state["decode"], *state["prefill"])
        )

    def ready(self) -> bool:
        return self.condition("eldr", NAME, "Ready").get("status") == "True"


@contextlib.asynccontextmanager
async def traffic(
    system: System, arrivals: Arrivals, *, logged: bool, work: Workload | None = None, tokens: int = 60
) -> AsyncIterator[Load]:
    """Send requests meanwhile, by default of all kinds; in the end those in flight are answered."""
    routers = system.routers()
    load = Load(lambda: routers, NAME, arrivals, tokens=tokens)

    async def follow() -> None:
        while True:
            await asyncio.sleep(0.3)
            routers[:] = await asyncio.to_thread(system.routers) or routers

    records, _ = traces.load().split(KINDS)
    load.switch(work or Workload("traffic", replay(records), logged=logged))
    stop = asyncio.Event()
    running, following = asyncio.create_task(load.run(stop)), asyncio.create_task(follow())
    try:
        yield load
    finally:
        stop.set()
        await running
        following.cancel()


def until(load: Load, requests: int) -> None:
    """Wait until so many requests have ended."""
    wait_for(lambda: len(load.outcomes) >= requests, f"{requests} answers", 120)


def failed(load: Load) -> list[str]:
    """Return why requests failed."""
    return [outcome.error for outcome in load.outcomes if outcome.error]


def usual(speed: float, samples: int = 1000000) -> dict[str, Any]:
    """Return the spec of a deployment of simulated engines; by default no fit begins by itself."""
    return {
        "model": {"uri": "sim://tiny-moe"},
        "engine": {"type": "Simulator", "args": ["--speed", str(speed)]},
        "prefill": {"replicas": 2},
        "decode": {"replicas": 3},
        "signatures": {"samplePercent": 100},
        "refit": {"minSamples": samples},
    }


def fit(name: str) -> dict[str, Any]:
    """Return a fit of the deployment."""
    spec = {"deploymentRef": {"name": NAME}}
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND_FIT,
        "metadata": {"name": name},
        "spec": spec,
    }


def process(address: str, command: str) -> int | None:
    """Return the id of a pod's program, the process that listens on its address; None while it does not run."""
    whole = re.compile(re.escape(address) + r"(?!\d)")  # 127.1.0.1 is not 127.1.0.12
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        named = any(command in word for word in words) and any(whole.search(word) for word in words)
        if named and "python" in words[0]:
            return int(entry.name)
    return None


def kill(address: str, command: str, by: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the program of a pod."""
    found = process(address, command)
    assert found is not None, f"no process {command} at {address}"
    os.kill(found, by)


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """Looks at the cluster often: some steps take less than kubectl does."""
    with Kube(cluster, "default") as client:
        yield client


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, cluster: Cluster, kube: Kube) -> Iterator[System]:
    """A deployment with traffic; a module may ask for slower engines by a constant ``ENGINE_SPEED``, or for another ``SPEC``."""
    spec = usual(getattr(request.module, "ENGINE_SPEED", SPEED))
    cluster.helm("install", "eldr", str(CHART), "--set", "resyncSeconds=2", "--wait", "--timeout", "120s")
    system = System(cluster, kube)
    system.deploy(getattr(request.module, "SPEC", spec))
    yield system
    cluster.kubectl("delete", "eldr", NAME, "--wait=true", "--timeout=60s")
    selector = f"{contract.LABEL_DEPLOYMENT}={NAME}"
    # kept here: where this is the last test, the cluster is gone before anybody else could look
    kept = request.config.rootpath / "out" / "failed" / request.module.__name__
    wait_for(
        lambda: not kube.list("Pod", selector),
        "all pods to be garbage-collected",
        SECONDS,
        lambda: left.keep(cluster, kept),
    )
    cluster.helm("uninstall", "eldr", "--wait", "--timeout", "60s")
    delete_crds(cluster)

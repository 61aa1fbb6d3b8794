"""The operator as a process of its own, with exactly the rights that the chart gives it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from eldr_kube.cluster import Cluster
from eldr_kube.ports import free_ports
from eldr_kube.processes import end, spawn
from tests.operator.fit_runs import FitRun
from tests.operator.logging_routers import LoggingRouter
from tests.operator.real_fits import DRIFT, USUAL, detected
from tests.operator.simulated.cluster import Simulated
from tests.operator.world import KIND, World
from tests.support.helm import CHART
from tests.support.kube import Kube
from tests.support.processes import wait_for

SYSTEM = "eldr-system"
ACCOUNT = "eldr-operator"
RESYNC_SECONDS = 2
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"


class Operator:
    """The operator process.

    Parameters
    ----------
    system : str
        Namespace of its service account.
    namespaces : sequence of str
        Empty for all.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, *, system: str = SYSTEM, namespaces: Sequence[str] = ()
    ) -> None:
        self.cluster = cluster
        self._system = system
        self._serves = [f"--namespace={name}" for name in namespaces] or ["--all-namespaces"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.metrics_port, self.liveness_port = free_ports(2)
        self.log = folder / "operator.log"
        self.log.touch()

    def log_in(self) -> Path:
        """Write a kubeconfig with a new token."""
        with Kube(self.cluster, self._system) as kube:
            token = kube.account_token(ACCOUNT)
        return self.cluster.kubeconfig_of(token, self._folder / "kubeconfig")

    def start(
        self,
        *,
        is_ready: bool = True,
        release: str = "",
        options: Sequence[str] = (),
        kubeconfig: Path | None = None,
    ) -> None:
        """Start it.

        Parameters
        ----------
        release : str
            Python that makes another release of it.
        kubeconfig : Path, optional
            As :meth:`log_in` has written it, where the API server cannot be asked now.
        """
        path = kubeconfig or self.log_in()
        program = f"{release}\nfrom eldr.cli import main; main()"
        command = [sys.executable, "-c", program, "operator", *self._serves, *options]
        command += [f"--resync-seconds={RESYNC_SECONDS}", "--host=127.0.0.1"]
        command += [f"--metrics-port={self.metrics_port}", f"--liveness-port={self.liveness_port}"]
        command += [f"--key-namespace={self._system}"]
        self._process = spawn(command, log=self.log, env={**os.environ, "KUBECONFIG": str(path)})
        if is_ready:
            self.until_ready()
        else:
            wait_for(self.is_healthy, "a healthy operator", 60, self.said)

    def until_ready(self) -> None:
        wait_for(lambda: self.asked("/readyz") == (200, "ok\n"), "a ready operator", 60, self.said)

    def said(self) -> str:
        return self.log.read_text()[-3000:]

    def asked(self, path: str) -> tuple[int, str]:
        """Return status and text of an answer of the liveness port; 0 if there is none."""
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.liveness_port}{path}", timeout=15)
        except httpx.HTTPError:
            return 0, ""
        return answer.status_code, answer.text

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_healthy(self) -> bool:
        return self.asked("/healthz")[0] == 200

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=15).text

    def passes(self) -> int:
        """Return how many reconciliations there were since its start; while a test runs there is one deployment."""
        if self._process is None or self._process.poll() is not None:
            return 0
        counts = re.findall(
            r'^eldr_operator_reconcile_total{controller="\w+",result="success"} (\S+)$',
            self.metrics(),
            re.MULTILINE,
        )
        return min((int(float(count)) for count in counts), default=0)

    def stop(self) -> int:
        assert self._process is not None
        end(self._process)
        return self._process.returncode

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop its process until :meth:`resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let its process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def requests(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the operator's requests from the audit log, from a byte on, but for those that keep its Leases."""
        with self.cluster.control_plane.audit_log.open() as file:
            file.seek(start)
            entries = [json.loads(line) for line in file if line.endswith("\n")]
        return [
            entry
            for entry in entries
            if entry["user"]["username"] == USER
            and (entry.get("objectRef") or {}).get("resource") != "leases"
        ]

    def audit_size(self) -> int:
        return self.cluster.control_plane.audit_log.stat().st_size


@pytest.fixture(scope="session")
def installed(api_server: Cluster) -> Cluster:
    """The chart without its Deployment: the operator runs as a local process."""
    rendered = api_server.helm("template", "eldr", str(CHART), "--namespace", SYSTEM, "--skip-tests")
    kept = [
        manifest for manifest in yaml.safe_load_all(rendered) if manifest and manifest["kind"] != "Deployment"
    ]
    api_server.kubectl("create", "namespace", SYSTEM)
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))

    def established() -> bool:  # `kubectl wait` fails where a new one has no conditions yet
        listed = json.loads(api_server.kubectl("get", "crd", "-o", "json"))["items"]
        found = [crd.get("status", {}).get("conditions") or [] for crd in listed]
        return all(
            {"Established": "True"}.items() <= {c["type"]: c["status"] for c in one}.items() for one in found
        )

    wait_for(established, "established CRDs")
    return api_server


@pytest.fixture(scope="session")
def operators() -> list[Operator]:
    """The operator of this control plane, once a test has needed it."""
    return []


@pytest.fixture(scope="session")
def operator(
    installed: Cluster, operators: list[Operator], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    running = Operator(installed, tmp_path_factory.mktemp("operator"))
    operators.append(running)
    running.start()
    yield running
    operators.remove(running)
    running.stop()


@pytest.fixture
def unattended(operators: list[Operator]) -> Iterator[None]:
    """Pause an operator that other tests have started: it acts in all namespaces, and the test writes what it would write."""
    for running in operators:
        running.pause()
    yield
    for running in operators:
        running.resume()


@pytest.fixture
def kube(installed: Cluster, bare_namespace: str) -> Iterator[Kube]:
    with Kube(installed, bare_namespace) as client:
        yield client
        for left in client.list(KIND):  # the operator would go on with it beside the next test's
            client.delete(KIND, left["metadata"]["name"])


@pytest.fixture
def world(operator: Operator, kube: Kube) -> Iterator[World]:
    made = World(kube)
    seen = operator.log.stat().st_size
    yield made
    made.close()
    with operator.log.open("rb") as log:
        log.seek(seen)
        said = log.read().decode()
    sys.stdout.write(said)  # pytest shows it for tests that failed
    assert operator.is_healthy()
    assert "Traceback" not in said


@pytest.fixture
def served(world: World, tmp_path: Path) -> Iterator[Callable[..., FitRun]]:
    """A deployment that serves the set of a real fit of the usual traffic, and how to run fits of it."""
    world.router_kind = LoggingRouter
    world.up(
        refit={"minSamples": 400, "drift": DRIFT},
        decode={"replicas": 4},
        prefill={"replicas": 1},
        signatures={"samplePercent": 100},
    )
    world.router.mix = USUAL
    runs: list[FitRun] = []

    def run(name: str, attempt: int = 1) -> FitRun:
        runs.append(FitRun(world, name, tmp_path, attempt))
        return runs[-1]

    report = run("x-bootstrap").finish()
    assert report["verdict"] == "Accepted", report["message"]
    world.until_active("x-bootstrap")
    detected(world, status="False", reason="Quiet")
    yield run
    for one in runs:
        one.close()


@pytest.fixture
def bare(request: pytest.FixtureRequest) -> Iterator[Simulated]:
    """A simulated cluster with an operator and no deployment; its parameter is the seed."""
    made = Simulated(getattr(request, "param", 1))
    yield made
    made.simulation.close()


@pytest.fixture
def it(bare: Simulated) -> Simulated:
    """The same with a deployment that is ready."""
    return bare.up()

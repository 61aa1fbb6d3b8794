"""What the operator costs with many deployments: an embedded control plane, real API, pods without programs.

    .venv/bin/python -m eldr_bench.operator

writes docs/benchmarks/operator.md. Every request is counted from the API server's audit log, by the operator's own account.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from eldr import contract
from eldr_bench.hollow import Hollow
from eldr_bench.machine import ROOT, load_before, revision
from eldr_bench.page import measured
from eldr_kube.cluster import Cluster
from eldr_kube.ports import free_ports
from eldr_kube.processes import end, spawn

PAGE = ROOT / "docs" / "benchmarks" / "operator.md"
SYSTEM, ACCOUNT = "eldr-system", "eldr-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
PER_NAMESPACE = 25
IDLE_SECONDS = 60.0
QUIET_SECONDS = 15.0
"""Longer than routers are asked apart: who has written nothing for so long has finished."""
READS = {"get", "list", "watch"}
CPU_AIM, REQUESTS_AIM, MEBIBYTES_AIM, IDLE_AIM = 0.06, 20.0, 300.0, 15.0
SPEC: dict[str, Any] = {
    "model": {"uri": "org/tiny"},
    "engine": {"type": "Simulator"},
    "prefill": {"replicas": 1, "gpus": 0},
    "decode": {"replicas": 2, "gpus": 0},
}


class Measured(NamedTuple):
    """One row of the page; seconds, but for what is named otherwise."""

    deployments: int
    written: float
    ready: float
    cpu: float
    requests: float
    writes: float
    idle_percent: float
    idle_writes: int
    mebibytes: float
    restart_cpu: float
    restart_writes: int


class Operator:
    """The operator as a process, with the rights of the chart."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        token = self._cluster.kubectl("-n", SYSTEM, "create", "token", ACCOUNT, "--duration=2h").strip()
        path = self._cluster.kubeconfig_of(token, self._folder / "kubeconfig")
        metrics, liveness = free_ports(2)
        command = [sys.executable, "-c", "from eldr.cli import main; main()", "operator", "--all-namespaces"]
        command += ["--host=127.0.0.1", f"--metrics-port={metrics}", f"--liveness-port={liveness}"]
        command.append(f"--key-namespace={SYSTEM}")
        log = self._folder / "operator.log"
        self._process = spawn(command, log=log, env={**os.environ, "KUBECONFIG": str(path)})

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            end(self._process)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mebibytes(self) -> float:
        """Return its resident memory."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def _proc(self, name: str) -> str:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the operator has ended; see {self._folder / 'operator.log'}")
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


class Audit:
    """The operator's requests since this was made."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._start = log.stat().st_size

    def requests(self) -> Counter[tuple[str, str]]:
        """Return how many there were, by verb and resource."""
        with self._log.open() as file:
            file.seek(self._start)
            entries = [json.loads(line) for line in file if line.endswith("\n")]
        return Counter(
            (entry["verb"], entry.get("objectRef", {}).get("resource", ""))
            for entry in entries
            if entry["user"]["username"] == USER and entry["stage"] == "ResponseComplete"
        )

    def writes(self) -> Counter[tuple[str, str]]:
        """Return those that write."""
        found = self.requests()
        return Counter({key: count for key, count in found.items() if key[0] not in READS})


def wait(check: Callable[[], str], what: str, seconds: float) -> float:
    """Wait until nothing lacks; return the seconds that took."""
    begun = time.monotonic()
    while lacks := check():
        if time.monotonic() - begun > seconds:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s: {lacks}")
        time.sleep(0.25)
    return time.monotonic() - begun


def until_quiet(audit: Audit) -> None:
    """Wait until nothing has been written for a while."""
    seen, since = audit.writes().total(), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(1.0)
        if (now := audit.writes().total()) != seen:
            seen, since = now, time.monotonic()


def unready(cluster: Cluster, *, besides: str = "") -> str:
    """Return how many deployments are not Ready, and what one of them says; empty if there are none.

    Parameters
    ----------
    besides : str
        Status of the condition that is as good as True.
    """
    found = json.loads(cluster.kubectl("get", "eldr", "-A", "-o", "json"))["items"]
    told = [
        next((one for one in each.get("status", {}).get("conditions", ()) if one["type"] == "Ready"), None)
        for each in found
    ]
    left = [one for one in told if one is None or one["status"] not in {"True", besides}]
    return f"{len(left)} of {len(told)}, one says {left[0]}" if left else ""


@contextmanager
def installed(count: int) -> Iterator[tuple[Cluster, Operator]]:
    """A control plane with the chart, without the chart's own pods."""
    with Cluster(agent=False, audit=True) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.kubectl("create", "namespace", SYSTEM)
        chart = str(ROOT / "charts" / "eldr")
        rendered = cluster.helm("template", "eldr", chart, "--namespace", SYSTEM, "--skip-tests")
        kept = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] != "Deployment"]
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(kept))
        cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
        for number in range(-(-count // PER_NAMESPACE)):
            cluster.create_namespace(f"team-{number}")
        yield cluster, Operator(cluster, Path(folder))


def measure(count: int) -> Measured:
    """Measure one number of deployments, on a control plane of its own."""
    limit = 60.0 + count
    with installed(count) as (cluster, operator):
        hollow = Hollow(cluster, count)
        try:
            operator.start()
            until_quiet(Audit(cluster.control_plane.audit_log))
            audit, started = Audit(cluster.control_plane.audit_log), operator.cpu_seconds()
            manifests = [
                {
                    "apiVersion": contract.API_VERSION,
                    "kind": contract.KIND_DEPLOYMENT,
                    "metadata": {"name": f"d{number}", "namespace": f"team-{number // PER_NAMESPACE}"},
                    "spec": SPEC,
                }
                for number in range(count)
            ]
            begun = time.monotonic()
            cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(manifests))
            wait(lambda: unready(cluster, besides="False"), "a status of each", limit)
            written = time.monotonic() - begun
            until_quiet(audit)
            cpu, requests, writes = operator.cpu_seconds() - started, audit.requests(), audit.writes()
            hollow.release()
            ready = wait(lambda: unready(cluster), "all Ready", limit)
            until_quiet(audit)
            audit, before = Audit(cluster.control_plane.audit_log), operator.cpu_seconds()
            time.sleep(IDLE_SECONDS)  # what is measured is that nothing happens
            idle, idle_writes = operator.cpu_seconds() - before, audit.writes().total()
            if left := unready(cluster):
                raise RuntimeError(f"the idle figures are of something else: not Ready are {left}")
            size = operator.mebibytes()
            operator.stop()
            audit = Audit(cluster.control_plane.audit_log)
            operator.start()
            until_quiet(audit)
            if not {verb for verb, _ in audit.requests()} & READS:
                raise RuntimeError("the restarted operator has asked for nothing")
            click.echo(f"{count} deployments: new {dict(requests)}, after the restart {dict(audit.writes())}")
            restart = Measured(
                count,
                written,
                ready,
                cpu / count,
                requests.total() / count,
                writes.total() / count,
                100 * idle / IDLE_SECONDS,
                idle_writes,
                max(size, operator.mebibytes()),
                operator.cpu_seconds(),
                audit.writes().total(),
            )
            operator.stop()
            return restart
        finally:
            hollow.close()


def page(rows: list[Measured], load: str) -> str:
    """Return the page."""
    names = [
        ("until each has its children and a status, s", lambda row: f"{row.written:.1f}", ""),
        ("from the first pod that may run to all Ready, s", lambda row: f"{row.ready:.1f}", ""),
        ("operator's CPU for a new deployment, s", lambda row: f"{row.cpu:.3f}", f"{CPU_AIM:g}"),
        ("its requests for a new deployment", lambda row: f"{row.requests:.1f}", f"{REQUESTS_AIM:g}"),
        ("of these, writes", lambda row: f"{row.writes:.1f}", ""),
        ("idle: share of a core, %", lambda row: f"{row.idle_percent:.1f}", f"{IDLE_AIM:g} with 500"),
        ("idle: writes in a minute", lambda row: str(row.idle_writes), "0"),
        ("memory at most, MiB", lambda row: f"{row.mebibytes:.0f}", f"{MEBIBYTES_AIM:g} with 500"),
        ("restart: CPU, s", lambda row: f"{row.restart_cpu:.1f}", ""),
        ("restart: writes", lambda row: str(row.restart_writes), "0"),
    ]
    lines = [
        "# What the operator costs",
        "",
        f"`make bench-operator`, {revision()}. {measured(load)}",
        "",
        "Deployments of one prefill and two decode engines on an embedded control plane, 25 in a namespace. Their pods do not run: a stand-in",
        "reports to the API server that they are ready, and answers the operator's requests to each router. There is no traffic, and no",
        "centroid set. Requests are counted from the API server's audit log. CPU and memory are those of the operator's process. After a restart",
        "an operator is measured until it has written nothing for a quarter of a minute.",
        "",
        "| deployments | " + " | ".join(str(row.deployments) for row in rows) + " | aim |",
        "|---|" + "---|" * (len(rows) + 1),
    ]
    lines += [f"| {name} | {' | '.join(map(shown, rows))} | {aim} |" for name, shown, aim in names]
    lines += [
        "",
        "A child is made by one request, which is refused where there is an object of that name: only then does the operator ask whose it is.",
    ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option(
    "--deployments", multiple=True, type=click.IntRange(1, 60000), default=(100, 200, 500), show_default=True
)
def main(*, deployments: tuple[int, ...]) -> None:
    """Measure the operator and write the page."""
    load, rows = load_before(), []
    for count in deployments:
        rows.append(measure(count))
        click.echo(rows[-1])
        PAGE.write_text(page(rows, load))
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

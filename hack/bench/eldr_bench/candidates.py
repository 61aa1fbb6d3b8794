"""Routers under measurement: how each is started, what it cost, and what it must have done."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eldr import centroids
from eldr.centroids import CentroidSet
from eldr.contract import PATH_STATE, POLICY_ELDR, POLICY_MARGINAL
from eldr_bench.load import CHUNKS, Target
from eldr_bench.mocks import EXPERTS, LAYERS, TOP_K
from eldr_bench.proof import require
from eldr_kube.ports import free_port, free_ports

PEER = "vllm-router 0.1.17"
K = 4
PATIENCE = 60.0
ROUTER_CORE = 0
PLACED = {
    POLICY_MARGINAL: ((POLICY_MARGINAL, "union"), (POLICY_MARGINAL, "no_signature")),
    POLICY_ELDR: ((POLICY_ELDR, "similarity"), ("JSQ", "no_signature")),
    **{policy: ((policy, "policy"), (policy, "policy")) for policy in ("JSQ", "RoundRobin")},
}
"""By which policy and why signed and unsigned requests are placed."""


@dataclass
class Candidate:
    """A router and what was measured of it; ``admin`` and ``policy`` are those of ours."""

    name: str
    pid: int
    target: Target
    policy: str = ""
    admin: int = 0
    asked: Counter[bool] = field(default_factory=Counter)
    signed: list[float] = field(default_factory=list)
    unsigned: list[float] = field(default_factory=list)
    streamed: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def chunk(self) -> list[float]:
        """Microseconds of CPU per streamed chunk by round, the requests' own cost taken off."""
        return [(ms - own) * 1e3 / CHUNKS for ms, own in zip(self.streamed, self.signed, strict=True)]

    def state(self) -> dict[str, Any]:
        """Return what our router tells of itself."""
        got: dict[str, Any] = get(f"http://127.0.0.1:{self.admin}{PATH_STATE}")
        return got

    def prove(self, state: Mapping[str, Any]) -> None:
        """Hold a router's state against what it was asked, ``asked`` requests with a signature and without."""
        counters: Mapping[str, float] = state["counters"]

        def counted(name: str) -> dict[str, float]:
            return {key: n for key, n in counters.items() if n and key.startswith(f"eldr_router_{name}")}

        require(state["policy"] == self.policy, f"{self.name}: policy {state['policy']} is in effect")
        total, expected = self.asked.total(), Counter[str]()
        for how, signed in zip(PLACED[self.policy], (True, False), strict=True):
            expected[series(*how)] += self.asked[signed]
        placed, ended, failed = map(counted, ("placements_total", "requests_total", "retries"))
        require(placed == +expected, f"{self.name}: placed {placed}, expected {dict(expected)}")
        ok = {'eldr_router_requests_total{outcome="ok"}': total}
        require(ended == ok, f"{self.name}: of {total} requests {ended}")
        require(not failed, f"{self.name}: attempts were given up, {failed}")
        unions, asked = state["locality"], self.asked[True]
        if self.policy == POLICY_MARGINAL:
            known = unions["requests"] if unions else 0
            require(known == asked, f"{self.name}: {known} of {asked} requests are in unions")
        else:
            require(unions is None, f"{self.name}: it keeps unions, {unions}")


def series(policy: str, reason: str) -> str:
    """Return the name of a counter of placements."""
    return f'eldr_router_placements_total{{policy="{policy}",reason="{reason}"}}'


def get(url: str) -> Any:
    """Return a JSON document."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as got:
        return json.load(got)


def wait(what: str, problem: Callable[[], str]) -> None:
    """Wait until there is no problem, nor an OSError."""
    end, told = time.monotonic() + PATIENCE, ""
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            told = problem()
            if not told:
                return
        time.sleep(0.05)
    require(False, f"{what} after {PATIENCE:g} s: {told or 'no answer'}")


@contextlib.contextmanager
def process(core: int, *arguments: str, checkout: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program on one core, with the packages of a folder if one is named."""
    env = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout}/router"} if checkout else None
    command = ["taskset", "-c", str(core), *arguments]
    child = subprocess.Popen(command, env=env, cwd=checkout, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def ours(
    name: str,
    policy: str,
    folder: Path,
    urls: list[str],
    checkout: str | None = None,
    *,
    without: Collection[str] = (),
    more: Sequence[str] = (),
    sample_rate: float = 0.1,
) -> Iterator[Candidate]:
    """Run our router until it serves by a policy; without some of its usual options, and with more of them."""
    port, admin = free_ports(2)
    folder.mkdir()
    (folder / "c").write_bytes(centroid_file())
    workers = {
        "model": "m",
        "policy": policy,
        "prefill": [{"name": "p", "url": urls[0]}],
        "decode": [{"name": f"d{i}", "url": url} for i, url in enumerate(urls[1:])],
        "sample_rate": sample_rate,
        "max_in_flight": 10000,
    }
    (folder / "w").write_text(json.dumps(workers))
    options = {"workers": "w", "centroids": "c", "log-dir": "log"}
    command = [sys.executable, "-c", "from eldr.cli import main; main()", "router", "--log-level", "error"]
    for option, value in options.items():
        command += [] if option in without else [f"--{option}", str(folder / value)]
    command += ["--port", str(port), "--admin-port", str(admin), *more]
    with process(ROUTER_CORE, *command, checkout=checkout) as child:
        candidate = Candidate(name, child.pid, Target(port), policy, admin)

        def problem() -> str:
            state = candidate.state()
            serves = state["ready"] and state["policy"] == policy
            return "" if serves else f"ready {state['ready']}, policy {state['policy']} in effect"

        wait(f"{name}: does not serve by {policy}", problem)
        yield candidate


@contextlib.contextmanager
def theirs(environment: Path, urls: list[str]) -> Iterator[Candidate]:
    """Run vllm-router until it serves."""
    port = free_port()
    command = [str(environment / "bin" / "vllm-router"), "--vllm-pd-disaggregation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prefill", urls[0]]
    command += [part for url in urls[1:] for part in ("--decode", url)]
    command += ["--prefill-policy", "round_robin", "--decode-policy", "round_robin", "--log-level", "error"]
    command += ["--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"]
    with process(ROUTER_CORE, *command) as child:

        def problem() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return ""

        wait(f"{PEER}: does not serve", problem)
        yield Candidate(PEER, child.pid, Target(port))


def centroid_file() -> bytes:
    """Return a random set."""
    centers = np.random.default_rng(1).random((K, LAYERS * EXPERTS), dtype=np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    weights = np.ones((LAYERS, EXPERTS), dtype=np.float32)
    kept = tuple(range(LAYERS))
    return centroids.dump(CentroidSet("m", LAYERS, EXPERTS, TOP_K, kept, "counts", weights, centers, 1, 0.0))

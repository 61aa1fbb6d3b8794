"""`eldr compare` on a real API server: what it sets, and how that is undone, also by another one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from eldr import contract
from eldr.status import hold
from tests.operator.routers import PretendRouter
from tests.operator.world import World
from tests.support.processes import ELDR, wait_for
from tests.unit.compare.test_parts import ENGINE, ROUTER

pytestmark = [pytest.mark.kube, pytest.mark.process, pytest.mark.timeout(900)]

KIND = contract.KIND_DEPLOYMENT
STARVED_SECONDS = 180.0
"""A program that takes two seconds of a processor to start takes a minute where fifteen want it."""


_asked = itertools.count(1)


def busy(page: str, *counters: str) -> str:
    """Return a page of metrics whose counters are further on with every look, as where requests are answered."""
    asked = next(_asked)
    for counter in counters:
        name, _, value = counter.rpartition(" ")
        page = page.replace(counter, f"{name} {float(value) + asked}")
    return page


class Told(PretendRouter):
    """Has metrics, of some requests."""

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if path == contract.PATH_METRICS:
            first = "eldr_router_first_byte_seconds"
            return 200, busy(
                ROUTER, f'{first}_bucket{{le="+Inf"}} 15.0', f"{first}_count 15.0", f"{first}_sum 7.5"
            ).encode()
        return super().answer(path, authorization)


class Engine(BaseHTTPRequestHandler):
    """Metrics of a decode engine."""

    def do_GET(self) -> None:
        gaps = "vllm:inter_token_latency_seconds"
        page = ENGINE.format(gaps=gaps)
        body = busy(
            page, 'vllm:generation_tokens_total{engine="0"} 1000.0', f'{gaps}_sum{{engine="0"}} 60.0'
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(world) -> Iterator[World]:
    """A deployment whose routers and engines have metrics."""

    def engine() -> ThreadingHTTPServer | None:
        try:  # another test may still have the port
            return ThreadingHTTPServer(("127.0.0.1", contract.PORT_ENGINE), Engine)
        except OSError:
            return None

    server = wait_for(engine, "the port of engines")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    world.router_kind = Told
    world.up()
    yield world
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.fixture
def begin(world, tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a comparison with JSQ, or other arguments."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        where = ["--kubeconfig", str(world.kube.cluster.kubeconfig), "-n", world.kube.namespace]
        usual = ["--against=JSQ", "--hours=1", "--window=4", "--carry-over=1", "--seed=1"]
        command = [str(ELDR), "compare", world.name, *where, *(arguments or usual)]
        log = (tmp_path / f"{len(started)}.log").open("w")
        running = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, env={**os.environ}
        )
        log.close()
        started.append(running)
        return running

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()


def ended(tmp_path, process, number: int) -> tuple[int, str]:
    code = process.wait(STARVED_SECONDS)
    return code, " ".join((tmp_path / f"{number}.log").read_text().split())


def spec(world) -> dict[str, Any]:
    return world.kube.get(KIND, world.name)["spec"]


def mark(world) -> str | None:
    return (world.kube.get(KIND, world.name)["metadata"].get("annotations") or {}).get(hold.ANNOTATION)


def until_policy(world, policy: str, tmp_path) -> None:
    def is_set() -> bool:
        return bool(mark(world)) and spec(world)["router"]["policy"] == policy

    wait_for(is_set, f"{policy} by a comparison", STARVED_SECONDS, show=(tmp_path / "0.log").read_text)


def uids(world) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.kube.list("Pod", contract.LABEL_ROLE)}


@pytest.mark.costly
def test_policies_alternate_no_pod_is_replaced_and_sigterm_restores(served, begin, tmp_path):
    before, pods = spec(served), uids(served)
    running = begin()
    until_policy(served, "JSQ", tmp_path)
    assert spec(served)["refit"]["suspend"] == "Enabled"
    assert spec(served)["refit"]["drift"]["mode"] == "Observe"
    until_policy(served, "MarginalUnion", tmp_path)
    until_policy(served, "JSQ", tmp_path)
    second = begin()
    code, said = ended(tmp_path, second, 1)
    assert code == 1
    assert "InUse: another eldr compare holds the deployment" in said
    running.send_signal(signal.SIGTERM)
    code, said = ended(tmp_path, running, 0)
    assert (code, "Stopped: by Ctrl-C or a signal: policy " in said) == (1, True), said
    assert "policy MarginalUnion as before" in said
    assert spec(served) == before
    assert mark(served) is None
    assert uids(served) == pods


@pytest.mark.costly
def test_what_a_killed_one_left_is_restored(served, begin, tmp_path):
    before = spec(served)
    running = begin()
    until_policy(served, "JSQ", tmp_path)
    running.kill()
    running.wait()
    assert spec(served) != before
    code, said = ended(tmp_path, begin("--restore"), 1)
    assert (code, "InUse" in said) == (1, True), said
    old = json.loads(mark(served)) | {"until": "2026-01-01T00:00:00Z"}
    served.kube.merge(KIND, served.name, {"metadata": {"annotations": {hold.ANNOTATION: json.dumps(old)}}})
    code, said = ended(tmp_path, begin("--restore"), 2)
    assert (code, "policy MarginalUnion as before" in said) == (0, True), said
    assert spec(served) == before
    assert mark(served) is None
    code, said = ended(tmp_path, begin("--restore"), 3)
    assert (code, said.endswith("nothing to restore")) == (0, True), said

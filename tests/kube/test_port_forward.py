"""kubectl port-forward, through the API server to the node's endpoint."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.processes import wait_for
from tests.support.space import Space, container, pod

pytestmark = pytest.mark.kube

ECHO = """
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8000), Handler).serve_forever()
"""


@contextmanager
def forwarded(space: Space, target: str, port: int, log: Path) -> Iterator[str]:
    """Forward a free port of loopback; yield its address."""
    cluster = space.cluster
    command = [cluster.bin / "kubectl", "-n", space.name, "port-forward", target, f":{port}"]
    with log.open("w") as output:
        forward = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        )
    try:
        found = wait_for(
            lambda: re.search(r"Forwarding from (127\.0\.0\.1:\d+)", log.read_text()), "a port", 30
        )
        assert isinstance(found, re.Match)
        yield f"http://{found[1]}"
    finally:
        forward.terminate()
        forward.wait()


@pytest.fixture
def echo(space: Space) -> Space:
    """A pod that answers with what it is sent, on its own address only, and a Service for it."""
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    main = container("", env=[address], readinessProbe={"tcpSocket": {"port": 8000}})
    main |= {"image": "python:3.13", "command": ["python", "-c", ECHO], "ports": [{"containerPort": 8000}]}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "echo"},
        "spec": {"selector": {"app": "echo"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    manifest = pod("echo", main)
    manifest["metadata"]["labels"] = {"app": "echo"}
    space.apply(manifest, service)
    space.wait_ready("echo")
    return space


@pytest.mark.parametrize(("target", "port"), [("pod/echo", 8000), ("svc/echo", 80)])
def test_bytes_go_both_ways(echo: Space, tmp_path: Path, target: str, port: int):
    with forwarded(echo, target, port, tmp_path / "log") as address, httpx.Client(base_url=address) as client:
        for body in (b"small", os.urandom(1 << 22), b"small again"):
            assert client.post("/", content=body, timeout=30).content == body


def test_a_port_that_nobody_listens_on_is_told(echo: Space, tmp_path: Path):
    log = tmp_path / "log"
    with forwarded(echo, "pod/echo", 8001, log) as address:
        with pytest.raises(httpx.TransportError):
            httpx.get(address, timeout=30)
        wait_for(lambda: "connection refused" in log.read_text(), "kubectl to say why", 10)

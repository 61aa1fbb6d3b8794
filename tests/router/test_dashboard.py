"""The queries of the chart's dashboard, run by Prometheus over a router, engines and an operator's registry."""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import start_http_server

from eldr_kube.ports import free_port
from eldr_operator.metrics import Metrics
from tests.support.processes import engine, wait_for
from tests.support.prometheus import prometheus
from tests.support.router import router

pytestmark = pytest.mark.process

DASHBOARD = Path(__file__).parents[2] / "charts" / "eldr" / "files" / "dashboard.json"
CLIENTS = 4
SCORE = 0.4
LATER = {"Saving"}
"""Panels that stay empty for as long as the router knows too little."""


class Broken(BaseHTTPRequestHandler):
    """A decode engine that is healthy, and fails every request: each one that it gets is tried again elsewhere."""

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(500)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def broken() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def queries() -> dict[str, str]:
    """Return the queries, the first of each panel, as Grafana would send them."""
    chosen = {"$namespace": "default", "$deployment": "qwen3", "$__rate_interval": "10s"}
    found = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        query = panel["targets"][0]["expr"]
        for variable, value in chosen.items():
            query = query.replace(variable, value)
        found[panel["title"]] = query
    return found


@pytest.fixture
def operator():
    """An operator's metrics: a deployment that is not ready."""
    metrics, port = Metrics(), free_port()
    told = {"conditions": [{"type": "Ready", "status": "False"}]}
    metrics.watch_conditions(
        lambda: [("EldrDeployment", {"metadata": {"namespace": "default", "name": "qwen3"}, "status": told})]
    )
    metrics.drift.labels("default", "qwen3").set(SCORE)
    metrics.reconciles.labels("workloads", "success").inc()
    server, thread = start_http_server(port, "127.0.0.1", metrics.registry)
    yield f"http://127.0.0.1:{port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.costly
def test_every_panel_shows_something_under_load(tmp_path, operator, broken):
    with (
        engine("prefill", "--speed", "100") as p,
        engine("decode", "--speed", "10") as d,
        router(tmp_path, {"p0": p.url, "d0": d.url, "d1": broken}) as r,
    ):
        targets = {
            r.admin: {"namespace": "default", "pod": "qwen3-prefill-abc", "deployment": "qwen3"},
            d.url: {"namespace": "default", "pod": "qwen3-decode-0", "deployment": "qwen3"},
            operator: {"namespace": "eldr-system", "pod": "eldr-operator-abc"},
        }
        (tmp_path / "prometheus").mkdir()
        with (
            prometheus(tmp_path / "prometheus", targets) as p8s,
            concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool,
        ):
            ended = threading.Event()

            def load(client: int) -> None:
                for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
                    r.ask(f"prompt {client} {number} " * 20, 20)

            clients = [pool.submit(load, client) for client in range(CLIENTS)]
            try:
                asked = queries()
                for title, query in asked.items():
                    if title not in LATER:
                        wait_for(lambda query=query: p8s.series(query), title)
                assert [value for _, value in p8s.series(asked["Drift score"])] == [SCORE]
                assert {labels["role"] for labels, _ in p8s.series(asked["In flight by engine"])} == {
                    "prefill",
                    "decode",
                }
                assert p8s.series(asked["Saving"]) == []
            finally:
                ended.set()
            for client in clients:
                client.result()

"""The simulator's view of a cluster: a real router behind an API server's proxy, played by a few lines."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest
import yaml
from click.testing import CliRunner

from eldr import contract
from eldr.cli import main
from eldr.siglog import SignatureLog
from eldr.sim import traces
from tests.support.processes import START_SECONDS, wait_for
from tests.support.records import make_record
from tests.support.router import TOKEN, Router

pytestmark = pytest.mark.process

NAMESPACE = "/api/v1/namespaces/team"
DEPLOYMENT = {
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"name": "m"},
        "decode": {"replicas": 3},
        "signatures": {"samplePercent": 50},
        "router": {"policy": "ELDR", "tau": "0.2"},
    },
}
QUICK = ["--seconds", "6", "--seeds", "2"]


class ApiServer:
    """Objects by path; of pods it proxies, it takes ``authorization`` away, as a real one does."""

    def __init__(self, admin: str) -> None:
        secret = {"data": {"token": base64.b64encode(TOKEN.encode()).decode()}}
        self.objects = {
            f"/apis/{contract.API_VERSION}/namespaces/team/eldrdeployments/demo": DEPLOYMENT,
            f"{NAMESPACE}/secrets/demo-admin": secret,
            f"{NAMESPACE}/pods": {"items": [pod("r-0"), pod("r-1"), pod("ending", deletionTimestamp="now")]},
        }
        self.refused: dict[str, int] = {}
        self._admin = admin
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, headers) -> tuple[int, bytes]:
        assert headers.get("authorization") == "Bearer mine"
        path, _, query = path.partition("?")
        refusal = next((status for part, status in self.refused.items() if part in path), None)
        if refusal:
            return refusal, json.dumps({"message": f"you may not: {path}"}).encode()
        if f"{NAMESPACE}/pods/r-0:{contract.PORT_ADMIN}/proxy/" in path:
            kept = {key: value for key, value in headers.items() if key.lower().startswith("x-")}
            got = httpx.get(self._admin + path.partition("/proxy")[2], headers=kept)
            return got.status_code, got.content
        if "/proxy/" in path:
            return 503, b'{"message": "no route to host"}'
        if path.endswith("/pods"):
            wanted = {"labelSelector": ["eldr.dev/deployment=demo,eldr.dev/router=true"]}
            return (200, json.dumps(self.objects[path]).encode()) if parse_qs(query) == wanted else (400, b"")
        found = self.objects.get(path)
        return (404, b'{"message": "not found"}') if found is None else (200, json.dumps(found).encode())

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = server.answer(self.path, self.headers)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler


def pod(name: str, **metadata: str) -> dict:
    return {"metadata": {"name": name, **metadata}, "status": {"podIP": "10.1.2.3"}}


@pytest.fixture(scope="module")
def admin(tmp_path_factory) -> Iterator[str]:
    """The admin port of a router that has a log already."""
    folder = tmp_path_factory.mktemp("router")
    writer = SignatureLog(folder / "log", max_bytes=1 << 26, max_age=1e12, now=0.0)
    captured = traces.load()
    for at in range(300):
        writer.append(make_record(captured, at, at % len(captured), time=1e9 + at / 2), now=1e12)
    writer.close()
    process = Router(folder, {}, "--log-hours", "1000000")
    try:
        wait_for(process.ready, "router", START_SECONDS)
        yield process.admin
    finally:
        process.stop()


@pytest.fixture
def api(admin, tmp_path: Path, monkeypatch) -> Iterator[ApiServer]:
    server = ApiServer(admin)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "mine"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "elsewhere", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield server
    server.close()


def run(*arguments: str):
    return CliRunner().invoke(main, ["simulate", *arguments])


@pytest.mark.slow
def test_a_deployments_logs_are_read_through_the_api_server(api):
    done = run("--from-cluster", "demo", *QUICK, "--step-time", "5,100,20", "--json", "-")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "3 decode engines, policy ELDR, tau 0.2, 50 % of the requests are logged" in report["requests"]
    assert "centroids from the older 150, simulated are the newer 150" in report["requests"]
    assert report["engines"] == 3
    assert report["rate"] == pytest.approx(4.0), "two a second in the log, half of the requests are logged"
    assert [row["policy"] for row in report["policies"]][:2] == ["JSQ", "ELDR"]
    assert any("have not learned how fast its engines are" in note for note in report["notes"])
    assert any(
        "r-1 was left out: router r-1: status 503: no route to host" in note for note in report["notes"]
    )


def test_what_is_told_wins(api):
    told = "--context elsewhere --namespace team --engines 2 --rate 5 --policy RoundRobin --json -"
    done = run("--from-cluster", "demo", *QUICK, *told.split())
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [row["policy"] for row in report["policies"]] == ["JSQ", "RoundRobin"]
    assert (report["engines"], report["rate"]) == (2, 5)
    assert any("give your accelerator's with --step-time" in note for note in report["notes"])


@pytest.mark.slow
def test_what_is_missing_is_said(api):
    def fails(*arguments: str) -> str:
        done = run(*arguments)
        assert done.exit_code == 1, done.output
        assert "Traceback" not in done.output
        return " ".join(done.output.split())

    assert "NotFound" in fails("--from-cluster", "none")
    for part in ("eldrdeployments", "secrets", "/pods"):
        api.refused = {part: 403}
        assert "Forbidden: you may not:" in fails("--from-cluster", "demo")
    api.refused = {"/proxy/": 403}
    assert "RoutersUnreachable: router r-0 was left out: you may not:" in fails("--from-cluster", "demo")
    api.refused = {}
    api.objects[f"{NAMESPACE}/pods"] = {"items": []}
    assert "NoRouters" in fails("--from-cluster", "demo")


def test_an_empty_log_is_said(api):
    plain = api.answer

    def empty(path, headers):
        return (200, b"") if path.endswith(contract.PATH_SIGLOG) else plain(path, headers)

    api.answer = empty
    done = run("--from-cluster", "demo")
    assert done.exit_code == 1
    assert "NoSamples: " in done.output
    assert "raise samplePercent, or send more" in done.output

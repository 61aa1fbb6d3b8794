"""Fits and the command line read admin ports that speak TLS, and say what is wrong with a certificate."""

from __future__ import annotations

import http.server
import ssl
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from eldr import admin_tls, contract, routers
from eldr.fit import cluster, job
from eldr.fit.samples import FitError
from eldr.fit.sources import from_routers
from eldr.kubeconfig import ClusterError
from eldr_kube.pki import Authority
from tests.support.clients import authority, issued

NAME = "x.ns.svc"


class Handler(http.server.BaseHTTPRequestHandler):
    body = b""

    def do_GET(self):
        is_allowed = self.headers["authorization"] == "Bearer t" or self.path == "/metrics"
        self.send_response(200 if is_allowed else 401)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Who refuses the certificate breaks off."""


@pytest.fixture
def signer(tmp_path: Path) -> Authority:
    return authority(tmp_path, "authority")


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Serve a body by TLS on what stands for the admin port; return what shows another certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = Quiet(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    monkeypatch.setattr(contract, "PORT_ADMIN", server.server_port)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def show(signed: Authority, host: str = NAME, days: float = 30) -> str:
        path = issued(signed, tmp_path / "shown", host, days)
        context.load_cert_chain(path, path.with_name("tls.key"))
        return f"https://127.0.0.1:{server.server_port}"

    yield show
    server.shutdown()
    server.server_close()


def trust(path: Path | None) -> job.Trust:
    return job._trust(SimpleNamespace(deployment="x", namespace="ns", admin_authority=path))


@pytest.mark.slow
def test_fits_read_logs_by_tls(serve, signer, tmp_path):
    report: dict[str, str] = {}
    assert list(from_routers([serve(signer)], "t", report, trust(signer.certificate))) == []
    assert list(from_routers([serve(signer, "elsewhere")], "t", report, trust(None))) == []
    assert report == {}
    with pytest.raises(FitError, match="its certificate is refused: certificate has expired"):
        list(from_routers([serve(signer, days=-0.5)], "t", report, trust(signer.certificate)))
    for content in (b"", b"no certificate"):
        (tmp_path / "ca.crt").write_bytes(content)
        with pytest.raises(FitError, match=r"ca.crt: expected certificates in PEM") as caught:
            trust(tmp_path / "ca.crt")
        assert caught.value.reason == "RoutersUnreachable"


def test_comments_of_a_bundle_may_be_in_any_script(serve, signer, tmp_path):
    path = tmp_path / "ca.crt"
    path.write_text("# Főtanúsítvány\n" + signer.certificate.read_text(), encoding="utf-8")
    assert list(from_routers([serve(signer)], "t", {}, trust(path))) == []
    with pytest.raises(admin_tls.AuthorityError, match="expected certificates in PEM"):
        admin_tls.verifying("# Főtanúsítvány\n")


def test_fits_ask_each_pod_by_what_it_speaks():
    def pod(address: str, port: str) -> dict:
        container = {"name": "router", "ports": [{"name": port}]}
        return {"metadata": {}, "spec": {"containers": [container]}, "status": {"podIP": address}}

    pods = [pod("10.0.0.1", admin_tls.PORT), pod("fd00::1", admin_tls.PORT_TLS)]
    made = object.__new__(cluster.Cluster)
    made._namespace = "ns"
    answer = SimpleNamespace(data=httpx.Response(200, json={"items": pods}).content)
    made._api = SimpleNamespace(list_namespaced_pod=lambda *_, **__: answer)
    assert made.router_urls("x") == ["http://10.0.0.1:9100", "https://[fd00::1]:9100"]


class Server:
    """Stands for the API server, seen from inside the cluster."""

    is_inside, namespace = True, "ns"

    def __init__(self, tls: dict | None, data: dict | None = None) -> None:
        self.spec, self.data = {"router": {"adminTLS": tls} if tls else {}}, data

    def deployment(self, name: str) -> dict:
        assert name == "x"
        return {"metadata": {"name": name}, "spec": self.spec}

    def read(self, path: str, what: str) -> dict:
        assert (path, what) == ("/api/v1/namespaces/ns/configmaps/ca", "ConfigMap ca")
        return {"data": self.data}


TLS = {"secretName": "s", "authorityConfigMap": "ca"}
POD = routers.RouterPod("p", "127.0.0.1", "x", is_secure=True)


def test_the_command_line_reads_by_tls(serve, signer, tmp_path, monkeypatch):
    monkeypatch.setattr(Handler, "body", b"{}")
    serve(signer)
    known = Server(TLS, {"ca.crt": signer.certificate.read_text()})
    assert b"".join(routers.read(known, POD, "/x", "t")) == b"{}"
    assert routers.metrics(known, POD, contract.PORT_ADMIN) == (200, "{}")
    serve(authority(tmp_path, "other"))
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        list(routers.read(known, POD, "/x", "t"))
    assert b"".join(routers.read(Server(None), POD, "/x", "t")) == b"{}", (
        "a pod from before the field was removed"
    )
    for data in (None, {}, {"ca.crt": "none"}):
        with pytest.raises(ClusterError, match=r"ConfigMap ca: expected certificates in PEM under ca\.crt"):
            list(routers.read(Server(TLS, data), POD, "/x", "t"))

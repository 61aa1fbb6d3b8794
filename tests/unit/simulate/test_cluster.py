"""Servers that are no Kubernetes API, and objects that are not whole."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from eldr import contract
from eldr.fit.samples import FitError
from eldr.simulate.cluster import Cluster

RESOURCE = {"metadata": {"name": "demo"}, "spec": {}}
POD = {"metadata": {"name": "r-0"}, "status": {"podIP": "10.1.2.3"}}


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """What a server answers: by the last part of a path, or ``{}``."""
    found = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(found.get(self.path.partition("?")[0].rpartition("/")[2], {})).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "mine"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield found
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ({}, "EldrDeployment demo: expected metadata.name and spec"),
        ({"demo": {"metadata": {"name": "demo"}, "spec": 3}}, "EldrDeployment demo: expected metadata.name and spec"),
        ({"demo": RESOURCE}, "its pods: expected a list in items"),
        ({"demo": RESOURCE, "pods": {"items": "no"}}, "its pods: expected a list in items"),
        ({"demo": RESOURCE, "pods": {"items": [{}]}}, "its pods: expected pods in items"),
        ({"demo": RESOURCE, "pods": {"items": [POD]}}, "Secret demo-admin holds no token"),
    ],
)  # fmt: skip
def test_a_server_that_answers_something_else_is_told(answers, tmp_path, objects, told):
    answers.update(objects)
    with pytest.raises(FitError, match=told) as caught:
        Cluster().find("demo", tmp_path)
    assert caught.value.reason in {"ClusterUnreachable", "NoToken"}


@pytest.mark.parametrize("state", [[1], None, 3])
def test_a_state_that_is_none_leaves_its_router_out(answers, tmp_path, state):
    answers.update(demo=RESOURCE, pods={"items": [POD]}, **{"demo-admin": {"data": {"token": "dG9rZW4="}}})
    answers[contract.PATH_STATE.rpartition("/")[2]] = state
    with pytest.raises(FitError, match="router r-0 was left out: its state is no object"):
        Cluster().find("demo", tmp_path)

"""Servers that are no Kubernetes API, and objects that are not whole."""

import base64

import pytest

from eldr.contract import PATH_SIGLOG
from eldr.kubeconfig import ClusterError
from eldr.simulate.cluster import read_deployment
from tests.support.api_server import answering, as_json

RESOURCE = {"metadata": {"name": "demo"}, "spec": {}}
POD = {"metadata": {"name": "r-0"}, "status": {"podIP": "10.1.2.3"}}


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """What a server answers: by the last part of a path, or ``{}``."""
    found = {}

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with answering(lambda path: as_json(found.get(path.rpartition("/")[2], {})), tmp_path / "config"):
        yield found


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ({}, "EldrDeployment demo: expected metadata.name and spec"),


        ({"demo": RESOURCE, "pods": {"items": "no"}}, "its pods: expected a list in items"),

        ({"demo": RESOURCE, "pods": {"items": [POD]}}, "Secret demo-admin holds no token"),
    ],
)  # fmt: skip
def test_a_server_that_answers_something_else_is_told(answers, tmp_path, objects, told):
    answers.update(objects)
    with pytest.raises(ClusterError, match=told) as caught:
        read_deployment("demo", tmp_path)
    assert caught.value.reason in {"ClusterUnreachable", "NoToken"}


def test_of_a_router_whose_log_cannot_be_read_nothing_counts(answers, tmp_path, monkeypatch):
    pods = [{"metadata": {"name": name}, "status": {"podIP": "10.1.2.3"}} for name in ("r-0", "r-1")]
    token = {"data": {"token": base64.b64encode(b"t").decode()}}
    answers.update({"demo": RESOURCE, "pods": {"items": pods}, "demo-admin": token})

    def read(server, pod, path, token):
        if path == PATH_SIGLOG and pod.name == "r-0":
            raise ValueError("it broke")
        return [b'{"router":"%b"}' % pod.name.encode()]

    monkeypatch.setattr("eldr.routers.read", read)
    deployment = read_deployment("demo", tmp_path)
    assert deployment.states == ({"router": "r-1"},)
    assert deployment.notes == ("router r-0 was left out: it broke",)

"""Servers that are no Kubernetes API, and objects that are not whole."""

import pytest

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

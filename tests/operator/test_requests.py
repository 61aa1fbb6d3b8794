"""What the operator relies on to make a child with one request."""

from __future__ import annotations

import pytest

from eldr import contract
from eldr_operator.kube.api import RESOURCES, path
from tests.support.kube import Refused

pytestmark = pytest.mark.kube


@pytest.mark.parametrize("kind", ["Service", "StatefulSet", contract.KIND_SCALER])
def test_an_apply_that_names_a_version_makes_what_is_not_there_and_changes_nothing_else(kube, kind):
    """Built-in kinds, and one of a CRD."""
    labels = {"app": "x"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    spec = {
        "Service": {"selector": labels, "ports": [{"port": 80}]},
        "StatefulSet": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod},
        contract.KIND_SCALER: {"replicas": 3},
    }[kind]

    def apply(**metadata):
        head = {"apiVersion": RESOURCES[kind].api_version, "kind": kind}
        body = {**head, "metadata": {"name": "x", "resourceVersion": "1", **metadata}, "spec": spec}
        url, content = path(kind, kube.namespace, "x"), "application/apply-patch+yaml"
        return kube.request("PATCH", url, body, content, fieldManager="test", force="true")

    made = apply()
    assert int(made["metadata"]["resourceVersion"]) > 1
    assert {entry["operation"] for entry in made["metadata"]["managedFields"]} == {"Apply"}
    with pytest.raises(Refused) as refusal:
        apply(labels=labels)
    assert refusal.value.status == 409
    assert kube.get(kind, "x")["metadata"].get("labels") is None

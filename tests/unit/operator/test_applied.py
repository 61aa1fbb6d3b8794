"""Whether an object is as it was applied last, by its managed fields."""

from copy import deepcopy
from functools import reduce

import pytest

from eldr_operator.kube.applied import is_as_applied

MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "x",
        "namespace": "ns",
        "labels": {"a": "1"},
        "ownerReferences": [{"uid": "u", "name": "x"}],
        "annotations": {},
    },
    "spec": {
        "paused": False,
        "replicas": 2,
        "selector": {"matchLabels": {"a": "1"}},
        "finalizers": ["f"],
        "template": {
            "spec": {
                "nodeSelector": {"zone": "a", "disk": "b"},
                "containers": [
                    {
                        "name": "c",
                        "args": ["--x"],
                        "ports": [{"containerPort": 1, "protocol": "TCP"}],
                        "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    }
                ],
            }
        },
    },
}
LIVE = deepcopy(MANIFEST)
"""As the API server has it, with what others and defaults have added."""
del LIVE["metadata"]["annotations"], LIVE["spec"]["paused"]
LIVE["metadata"]["labels"]["others"] = "too"
LIVE["spec"]["revisionHistoryLimit"] = 10
LIVE["spec"]["template"]["spec"]["restartPolicy"] = "Always"
(_engine,) = LIVE["spec"]["template"]["spec"]["containers"]
_engine["terminationMessagePath"] = "/dev"
_engine["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
CONTAINER = {
    ".": {},
    "f:name": {},
    "f:args": {},
    "f:ports": {'k:{"containerPort":1,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:protocol": {}}},
    "f:env": {'k:{"name":"E"}': {".": {}, "f:name": {}, "f:valueFrom": {"f:fieldRef": {}}}},
}
OWNED = {
    "f:metadata": {
        "f:labels": {"f:a": {}},
        "f:ownerReferences": {'k:{"uid":"u"}': {}},
    },
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:finalizers": {'v:"f"': {}},
        "f:template": {"f:spec": {"f:nodeSelector": {}, "f:containers": {'k:{"name":"c"}': CONTAINER}}},
    },
}


def live(owned=OWNED, **entry):
    found = deepcopy(LIVE)
    found["metadata"]["managedFields"] = [
        {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:status": {}}},
        {"manager": "me", "operation": "Apply", "fieldsV1": deepcopy(owned), **entry},
    ]
    return found


def test_what_others_and_defaults_added_does_not_matter():
    assert is_as_applied(live(), MANIFEST, "me")


@pytest.mark.parametrize(
    "entry", [{"manager": "you"}, {"subresource": "status"}, {"fieldsV1": None}, {"operation": "Delete"}]
)
def test_only_what_we_applied_counts(entry):
    assert not is_as_applied(live(**entry), MANIFEST, "me")


def test_what_we_created_counts_until_we_apply():
    """Later an update of ours is what admission webhooks made of an apply."""
    created = live(operation="Update")
    assert is_as_applied(created, MANIFEST, "me")
    created["metadata"]["managedFields"].append({"manager": "me", "operation": "Apply", "fieldsV1": {}})
    assert not is_as_applied(created, MANIFEST, "me")


def test_without_managed_fields_nothing_is_certain():
    assert not is_as_applied(LIVE, MANIFEST, "me")


CONTAINER_AT = "spec template spec containers"


def changed(made, path, value=None):
    """Return it with another value at a path, or without one."""
    made = deepcopy(made)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split())
    node = reduce(lambda node, part: node[part], parents, made)
    if value is None:
        del node[last]
    else:
        node[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata labels a", "2"),
        ("metadata ownerReferences", [{"uid": "u", "name": "x"}, {"uid": "v"}]),
        ("spec paused", True),
        ("spec replicas", 0),
        ("spec replicas", None),
        ("spec finalizers", ["f", "g"]),
        ("spec template spec nodeSelector disk", None),
        (CONTAINER_AT, []),
        (f"{CONTAINER_AT} 0 args", ["--x", "--y"]),
        (f"{CONTAINER_AT} 0 ports 0 protocol", None),
        (f"{CONTAINER_AT} 0 env 0 valueFrom", {"secretKeyRef": {"key": "k"}}),
    ],
)
def test_a_manifest_that_says_something_else_is_applied(path, value):
    assert not is_as_applied(live(), changed(MANIFEST, path, value), "me")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("f:spec f:replicas", None),
        ("f:metadata f:labels", {}),
        ("f:spec f:template f:spec f:nodeSelector", None),
        ("f:spec f:template f:spec f:containers", {}),
        ("f:spec f:minReadySeconds", {}),
    ],
)
def test_what_others_have_taken_over_is_applied(path, value):
    """Also where they left the value as it was: then it is theirs to change."""
    assert not is_as_applied(live(changed(OWNED, path, value)), MANIFEST, "me")

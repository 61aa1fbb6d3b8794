"""Whether an object is as it was applied last, by its managed fields."""

from copy import deepcopy

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


def container(made):
    return made["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made["metadata"]["labels"].update(a="2"),
        lambda made: made["metadata"]["labels"].update(b="1"),
        lambda made: made["metadata"]["ownerReferences"][0].update(name="y"),
        lambda made: made["metadata"]["ownerReferences"].append({"uid": "v"}),
        lambda made: made["spec"].update(paused=True),
        lambda made: made["spec"].update(replicas=0),
        lambda made: made["spec"].pop("replicas"),
        lambda made: made["spec"]["selector"].update(matchLabels={"a": "2"}),
        lambda made: made["spec"]["finalizers"].append("g"),
        lambda made: made["spec"]["template"]["spec"]["nodeSelector"].pop("disk"),
        lambda made: made["spec"]["template"]["spec"].update(containers=[]),
        lambda made: container(made).update(name="d"),
        lambda made: container(made)["args"].append("--y"),
        lambda made: container(made)["ports"][0].pop("protocol"),
        lambda made: container(made)["env"][0].update(valueFrom={"fieldRef": {"fieldPath": "other"}}),
        lambda made: container(made)["env"][0].update(valueFrom={"secretKeyRef": {"key": "k"}}),
    ],
)
def test_a_manifest_that_says_something_else_is_applied(change):
    made = deepcopy(MANIFEST)
    change(made)
    assert not is_as_applied(live(), made, "me")


@pytest.mark.parametrize(
    "taken",
    [
        lambda owned: owned["f:spec"].pop("f:replicas"),
        lambda owned: owned["f:metadata"]["f:labels"].clear(),
        lambda owned: owned["f:spec"]["f:template"]["f:spec"].pop("f:nodeSelector"),
        lambda owned: owned["f:spec"]["f:template"]["f:spec"]["f:containers"].clear(),
        lambda owned: owned["f:spec"].update({"f:minReadySeconds": {}}),
    ],
)
def test_what_others_have_taken_over_is_applied(taken):
    """Also where they left the value as it was: then it is theirs to change."""
    owned = deepcopy(OWNED)
    taken(owned)
    assert not is_as_applied(live(owned), MANIFEST, "me")

"""Patches of ``podTemplate``: what becomes of the generated pod template."""

import json

import pytest

from eldr_operator.workloads.podpatch import patched

TEMPLATE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}], "args": ["x"]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "securityContext": {"runAsUser": 1, "runAsNonRoot": True},
    },
}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"metadata": {"labels": {"b": "2"}}}, lambda t: t["metadata"]["labels"] == {"a": "1", "b": "2"}),
        ({"spec": {"nodeSelector": {"n": "1"}}}, lambda t: t["spec"]["nodeSelector"] == {"n": "1"}),
        (
            {
                "spec": {
                    "containers": [{"name": "engine", "env": [{"name": "A", "value": "2"}, {"name": "B"}]}]
                }
            },
            lambda t: (
                t["spec"]["containers"]
                == [{"name": "engine", "env": [{"name": "A", "value": "2"}, {"name": "B"}], "args": ["x"]}]
            ),
        ),
        (
            {"spec": {"containers": [{"name": "engine", "args": ["y"]}]}},
            lambda t: t["spec"]["containers"][0]["args"] == ["y"],
        ),
        (
            {"spec": {"containers": [{"name": "extra", "image": None}]}},
            lambda t: t["spec"]["containers"][1] == {"name": "extra"},
        ),
        ({"spec": {"securityContext": None}}, lambda t: "securityContext" not in t["spec"]),
        (
            {"spec": {"securityContext": {"runAsUser": None}}},
            lambda t: t["spec"]["securityContext"] == {"runAsNonRoot": True},
        ),
        (
            {"spec": {"tolerations": [{"key": "k"}]}},
            lambda t: t["spec"]["tolerations"] == [{"key": "k"}],
        ),
        (
            {"spec": {"volumes": [{"name": "m", "emptyDir": {}}]}},
            lambda t: [v["name"] for v in t["spec"]["volumes"]] == ["tmp", "m"],
        ),
    ],
)
def test_pod_patches(patch, expected):
    before = json.dumps(TEMPLATE)
    assert expected(patched(TEMPLATE, patch))
    assert json.dumps(TEMPLATE) == before, "the template is left as it was"


POD = {
    "spec": {
        "containers": [
            {
                "name": "engine",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "livenessProbe": {"httpGet": {"path": "/health", "port": 1}, "periodSeconds": 10},
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "volumeMounts": [{"name": "cache", "mountPath": "/c"}, {"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [
            {"name": "cache", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        ],
        "securityContext": {"runAsUser": 1, "runAsNonRoot": True},
        "tolerations": [{"key": "old"}],
    }
}


def engine(**patch):
    return {"spec": {"containers": [{"name": "engine"} | patch]}}


def container(template):
    return template["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("patch", "found", "expected"),
    [
        (
            {"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}]}},
            lambda t: t["spec"]["volumes"][0],
            {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}},
        ),
        (
            {"spec": {"volumes": [{"name": "memory", "emptyDir": {"sizeLimit": "32Gi"}}]}},
            lambda t: t["spec"]["volumes"][1],
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
        ),
        (
            {"spec": {"volumes": [{"name": "cache"}]}},
            lambda t: t["spec"]["volumes"][0],
            {"name": "cache", "emptyDir": {}},
        ),
        (
            {"spec": {"volumes": [{"name": "cache", "emptyDir": None, "hostPath": {"path": "/m"}}]}},
            lambda t: t["spec"]["volumes"][0],
            {"name": "cache", "hostPath": {"path": "/m"}},
        ),
        (
            engine(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            lambda t: container(t)["env"][0],
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ),
        (
            engine(env=[{"name": "B", "value": "2"}]),
            lambda t: container(t)["env"][1],
            {"name": "B", "value": "2"},
        ),
        (
            engine(env=[{"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]),
            lambda t: container(t)["env"][1],
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        ),
        (
            engine(livenessProbe={"exec": {"command": ["true"]}}),
            lambda t: container(t)["livenessProbe"],
            {"exec": {"command": ["true"]}, "periodSeconds": 10},
        ),
        (
            engine(livenessProbe={"periodSeconds": 99}),
            lambda t: container(t)["livenessProbe"],
            {"httpGet": {"path": "/health", "port": 1}, "periodSeconds": 99},
        ),
        (
            engine(lifecycle={"preStop": {"exec": {"command": ["true"]}}}),
            lambda t: container(t)["lifecycle"],
            {"preStop": {"exec": {"command": ["true"]}}},
        ),
        (engine(livenessProbe={"$patch": "delete"}), lambda t: "livenessProbe" in container(t), False),
        (
            engine(livenessProbe={"$patch": "replace", "tcpSocket": {"port": 2}}),
            lambda t: container(t)["livenessProbe"],
            {"tcpSocket": {"port": 2}},
        ),
        (
            engine(env=[{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}]),
            lambda t: [each["name"] for each in container(t)["env"]],
            ["B"],
        ),
        (
            engine(volumeMounts=[{"mountPath": "/tmp", "$patch": "delete"}]),
            lambda t: [each["mountPath"] for each in container(t)["volumeMounts"]],
            ["/c"],
        ),
        (
            {"spec": {"volumes": [{"$patch": "replace"}, {"name": "only", "emptyDir": {}}]}},
            lambda t: t["spec"]["volumes"],
            [{"name": "only", "emptyDir": {}}],
        ),
        (
            {"spec": {"volumes": [{"name": "memory", "$patch": "replace", "emptyDir": {}}]}},
            lambda t: t["spec"]["volumes"][1],
            {"name": "memory", "emptyDir": {}},
        ),
        (
            {"spec": {"securityContext": {"$patch": "replace", "fsGroup": 7}}},
            lambda t: t["spec"]["securityContext"],
            {"fsGroup": 7},
        ),
        (
            {"spec": {"tolerations": [{"key": "new"}]}},
            lambda t: t["spec"]["tolerations"],
            [{"key": "new"}],
        ),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "new",
                            "env": [
                                {"$patch": "replace"},
                                {"name": "A", "$patch": "delete"},
                                {"name": "C", "$patch": "merge"},
                            ],
                            "livenessProbe": {"$patch": "delete"},
                        }
                    ]
                }
            },
            lambda t: t["spec"]["containers"][1],
            {"name": "new", "env": [{"name": "C"}]},
        ),
    ],
)
def test_members_of_a_union_replace_each_other_and_markers_remove(patch, found, expected):
    before = json.dumps([POD, patch])
    assert found(patched(POD, patch)) == expected
    assert json.dumps([POD, patch]) == before, "neither argument is changed"

"""Patches of ``podTemplate``: what becomes of the generated pod template."""

import json
from functools import reduce

import pytest

from eldr_operator.workloads.podpatch import patched

POD = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "args": ["x"],
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
    },
}


def spec(**patch):
    return {"spec": patch}


def engine(**patch):
    return spec(containers=[{"name": "engine"} | patch])


def volumes(*patch):
    return spec(volumes=[*patch])


FROM_SECRET = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
FROM_MAP = {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
CLAIM = {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
EXEC = {"exec": {"command": ["true"]}}
OTHER = {"name": "m", "emptyDir": {}}


@pytest.mark.parametrize(
    ("patch", "path", "expected"),
    [
        ({"metadata": {"labels": {"b": "2"}}}, "metadata labels", {"a": "1", "b": "2"}),
        (engine(args=["y"]), "spec containers 0 args", ["y"]),
        (spec(containers=[{"name": "extra", "image": None}]), "spec containers 1", {"name": "extra"}),
        (spec(securityContext={"runAsUser": None}), "spec securityContext", {"runAsNonRoot": True}),
        (spec(tolerations=[{"key": "new"}]), "spec tolerations", [{"key": "new"}]),
        (volumes(OTHER), "spec volumes", [*POD["spec"]["volumes"], OTHER]),
        # members of a union replace each other
        (volumes(CLAIM), "spec volumes 0", CLAIM),
        (
            volumes({"name": "memory", "emptyDir": {"sizeLimit": "32Gi"}}),
            "spec volumes 1 emptyDir",
            {"medium": "Memory", "sizeLimit": "32Gi"},
        ),
        (
            volumes({"name": "cache", "emptyDir": None, "hostPath": {"path": "/m"}}),
            "spec volumes 0",
            {"name": "cache", "hostPath": {"path": "/m"}},
        ),
        (
            engine(env=[{"name": "A", "value": "2"}, {"name": "C"}]),
            "spec containers 0 env",
            [{"name": "A", "value": "2"}, POD["spec"]["containers"][0]["env"][1], {"name": "C"}],
        ),
        (engine(env=[FROM_SECRET]), "spec containers 0 env 0", FROM_SECRET),
        (engine(env=[FROM_MAP]), "spec containers 0 env 1", FROM_MAP),
        (engine(livenessProbe=EXEC), "spec containers 0 livenessProbe", EXEC | {"periodSeconds": 10}),
        (
            engine(livenessProbe={"periodSeconds": 99}),
            "spec containers 0 livenessProbe",
            {"httpGet": {"path": "/health", "port": 1}, "periodSeconds": 99},
        ),
        (engine(lifecycle={"preStop": EXEC}), "spec containers 0 lifecycle preStop", EXEC),
        # markers remove and replace
        (engine(livenessProbe={"$patch": "delete"}), "spec containers 0 livenessProbe", "absent"),
        (
            engine(livenessProbe={"$patch": "replace", "tcpSocket": {"port": 2}}),
            "spec containers 0 livenessProbe",
            {"tcpSocket": {"port": 2}},
        ),
        (
            engine(env=[{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}]),
            "spec containers 0 env",
            POD["spec"]["containers"][0]["env"][1:],
        ),
        (
            engine(volumeMounts=[{"mountPath": "/tmp", "$patch": "delete"}]),
            "spec containers 0 volumeMounts",
            [{"name": "cache", "mountPath": "/c"}],
        ),
        (volumes({"$patch": "replace"}, OTHER), "spec volumes", [OTHER]),
        (
            volumes({"name": "memory", "$patch": "replace", "emptyDir": {}}),
            "spec volumes 1",
            {"name": "memory", "emptyDir": {}},
        ),
        (
            spec(
                containers=[
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
            ),
            "spec containers 1",
            {"name": "new", "env": [{"name": "C"}]},
        ),
    ],
    ids=str,
)
def test_what_a_patch_makes_of_a_pod(patch, path, expected):
    before = json.dumps([POD, patch])
    *parents, last = (int(part) if part.isdigit() else part for part in path.split())
    parent = reduce(lambda node, part: node[part], parents, patched(POD, patch))
    assert (parent.get(last, "absent") if isinstance(parent, dict) else parent[last]) == expected
    assert json.dumps([POD, patch]) == before, "neither argument is changed"

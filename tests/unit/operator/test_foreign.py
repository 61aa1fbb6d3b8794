"""Which of our fields others have changed or removed, by managedFields as the API server writes them."""

from copy import deepcopy

import pytest

from eldr_operator.kube.foreign import lost

OURS = "eldr-operator"
APPLIED = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "x", "namespace": "ns", "labels": {"a": "1", "b": "2"}},
    "spec": {
        "replicas": 2,
        "paused": False,
        "selector": {"matchLabels": {"a": "1"}},
        "template": {
            "spec": {
                "containers": [
                    {"name": "engine", "image": "ours", "args": ["x"], "env": [{"name": "A", "value": "1"}]},
                    {"name": "router", "image": "ours"},
                ]
            }
        },
    },
}
ENGINE, ROUTER, A = (f'k:{{"name":"{name}"}}' for name in ("engine", "router", "A"))
OWNED = {
    "f:metadata": {"f:labels": {"f:a": {}, "f:b": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    ENGINE: {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:args": {},
                        "f:env": {A: {".": {}, "f:name": {}, "f:value": {}}},
                    },
                    ROUTER: {".": {}, "f:name": {}, "f:image": {}},
                }
            }
        },
    },
}


def entry(manager, fields, operation="Update", subresource=None):
    made = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return made | ({"subresource": subresource} if subresource else {})


def without(*paths):
    """Return what is ours after others have taken some fields."""
    owned = deepcopy(OWNED)
    for *parents, last in paths:
        node = owned
        for part in parents:
            node = node[part]
        del node[last]
    return owned


def within(path, leaf=None):
    return {path[0]: within(path[1:], leaf)} if path else leaf or {}


REPLICAS = ("f:spec", "f:replicas")
LABEL = ("f:metadata", "f:labels", "f:b")
CONTAINERS = ("f:spec", "f:template", "f:spec", "f:containers")
VALUE = (*CONTAINERS, ENGINE, "f:env", A, "f:value")
IMAGE = (*CONTAINERS, ENGINE, "f:image")


@pytest.mark.parametrize(
    ("taken", "others", "shown"),
    [
        ([], [], ""),
        ([], [entry("kubectl-set", within((*CONTAINERS, 'k:{"name":"spy"}'), {".": {}}))], ""),
        ([], [entry("kubectl", within(REPLICAS))], ""),
        ([REPLICAS], [entry("hpa", within(REPLICAS), subresource="scale")], "spec.replicas (set by hpa)"),
        ([REPLICAS], [entry("kubelet", within(REPLICAS), subresource="status")], "spec.replicas (removed)"),
        ([LABEL], [], "metadata.labels.b (removed)"),
        (
            [VALUE, IMAGE, LABEL],
            [entry("kubectl-set", within(VALUE)), entry("flux", within(IMAGE), "Apply")],
            (
                "spec.template.spec.containers[engine].env[A].value (set by kubectl-set);"
                " spec.template.spec.containers[engine].image (set by flux); metadata.labels.b (removed)"
            ),
        ),
        (
            [(*CONTAINERS, ROUTER)],
            [entry("kubectl-edit", within((*CONTAINERS, ENGINE)))],
            "spec.template.spec.containers[router] (set by kubectl-edit)",
        ),
    ],
    ids=[
        "nothing",
        "an addition",
        "theirs too",
        "scaled",
        "a status is no claim",
        "removed",
        "several",
        "an item of a list",
    ],
)
def test_what_others_have_taken_is_told_with_who(taken, others, shown):
    live = {"metadata": {"managedFields": [entry(OURS, without(*taken), "Apply"), *others]}}
    assert lost(live, APPLIED, OURS) == shown


def test_what_admission_changes_in_our_own_requests_is_ours():
    live = {
        "metadata": {
            "managedFields": [entry(OURS, without(IMAGE), "Apply"), entry(OURS, within(IMAGE), "Update")]
        }
    }
    assert lost(live, APPLIED, OURS) == ""

"""What others added to our pods, by managedFields as the API server writes them."""

import copy

import jsonpatch
import pytest

from eldr_operator.kube.foreign import additions, removal, restoration, told

OURS = "eldr-operator"
UNDO = "eldr-operator-undo"


def entry(manager, pod, operation="Update", subresource=None):
    made = {
        "manager": manager,
        "operation": operation,
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:template": {"f:spec": pod}}},
    }
    return made | ({"subresource": subresource} if subresource else {})


def item(name, **fields):
    return {f'k:{{"name":"{name}"}}': {".": {}} | fields}


LIVE = {
    "metadata": {"uid": "u", "generation": 7, "resourceVersion": "42"},
    "spec": {
        "replicas": 3,
        "template": {
            "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}},
            "spec": {
                "containers": [
                    {"name": "first", "image": "theirs", "imagePullPolicy": "Always"},
                    {
                        "name": "engine",
                        "image": "ours",
                        "args": ["serve"],
                        "env": [
                            {"name": "FOO", "value": "1"},
                            {"name": "A", "value": "1"},
                            {"name": "BAR", "value": "2"},
                        ],
                        "ports": [
                            {"containerPort": 8100, "protocol": "TCP"},
                            {"containerPort": 1, "protocol": "UDP"},
                        ],
                        "resources": {
                            "limits": {"cpu": "1", "amd.com/gpu": "1"},
                            "requests": {"memory": "1Gi"},
                        },
                    },
                    {"name": "last", "image": "theirs"},
                ],
                "nodeSelector": {"a": "b"},
                "schedulerName": "default-scheduler",
                "volumes": [
                    {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
                    {"name": "theirs", "emptyDir": {}},
                ],
            },
        },
    },
}
APPLIED = entry(
    OURS,
    {
        "f:containers": item(
            "engine",
            **{
                "f:name": {},
                "f:image": {},
                "f:args": {},
                "f:env": item("A", **{"f:name": {}, "f:value": {}}),
                "f:ports": {'k:{"containerPort":8100,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                "f:resources": {"f:limits": {"f:amd.com/gpu": {}}},
            },
        ),
        "f:volumes": item("cache", **{"f:emptyDir": {}, "f:name": {}}),
    },
    "Apply",
)


def engine(**fields):
    return {"f:containers": {'k:{"name":"engine"}': fields}}


def env(*names):
    return {"f:env": {key: value for name in names for key, value in item(name, **{"f:value": {}}).items()}}


def live(*entries):
    made = copy.deepcopy(LIVE)
    made["metadata"]["managedFields"] = [APPLIED, *entries]
    return made


def undone(*entries):
    """Return the pod's spec after the removal of what these entries added, and what was said of it."""
    before = live(*entries)
    found = additions(before, OURS)
    return jsonpatch.apply_patch(before, removal(before, found, UNDO))["spec"]["template"]["spec"], told(
        found
    )


@pytest.mark.parametrize(
    ("entries", "shown", "expected"),
    [
        (
            [entry("kubectl-set", engine(**env("FOO", "BAR")))],
            "containers[engine].env[FOO], containers[engine].env[BAR] (set by kubectl-set)",
            lambda pod: [each["name"] for each in pod["containers"][1]["env"]] == ["A"],
        ),
        (
            [
                entry(
                    "kubectl-set",
                    engine(
                        **{
                            "f:resources": {
                                "f:limits": {"f:cpu": {}},
                                "f:requests": {".": {}, "f:memory": {}},
                            }
                        }
                    ),
                )
            ],
            "containers[engine].resources.limits.cpu, containers[engine].resources.requests (set by kubectl-set)",
            lambda pod: pod["containers"][1]["resources"] == {"limits": {"amd.com/gpu": "1"}},
        ),
        (
            [
                entry("kubectl-edit", {"f:containers": item("first", **{"f:image": {}}) | item("last")}),
                entry("mesh", {"f:volumes": item("theirs", **{"f:emptyDir": {}})}, "Apply"),
            ],
            "containers[first], containers[last] (set by kubectl-edit); volumes[theirs] (set by mesh)",
            lambda pod: (
                [each["name"] for each in pod["containers"]] == ["engine"]
                and [each["name"] for each in pod["volumes"]] == ["cache"]
            ),
        ),
        (
            [
                entry(
                    "kubectl-patch",
                    {"f:volumes": {'k:{"name":"cache"}': {"f:emptyDir": {"f:sizeLimit": {}}}}},
                )
            ],
            "volumes[cache].emptyDir.sizeLimit (set by kubectl-patch)",
            lambda pod: pod["volumes"][0] == {"name": "cache", "emptyDir": {}},
        ),
        (
            [
                entry(
                    "kubectl-patch",
                    engine(**{"f:ports": {'k:{"containerPort":1,"protocol":"UDP"}': {".": {}}}}),
                )
            ],
            "containers[engine].ports[1,UDP] (set by kubectl-patch)",
            lambda pod: len(pod["containers"][1]["ports"]) == 1,
        ),
        (
            [entry("a", {"f:nodeSelector": {}}), entry("b", {"f:nodeSelector": {}, "f:schedulerName": {}})],
            "nodeSelector (set by a); schedulerName (set by b)",
            lambda pod: "nodeSelector" not in pod and "schedulerName" not in pod,
        ),
        (
            [
                entry("a", {"f:containers": item("first")}),
                entry("b", {"f:containers": {'k:{"name":"first"}': {"f:imagePullPolicy": {}}}}),
            ],
            "containers[first] (set by a)",
            lambda pod: [each["name"] for each in pod["containers"]] == ["engine", "last"],
        ),
    ],
)
def test_additions_of_others_are_removed(entries, shown, expected):
    pod, said = undone(*entries)
    assert said == shown
    assert expected(pod), pod


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(OURS, engine(**env("FOO")))],
        [entry("kubectl-client-side-apply", engine(**{"f:args": {}} | env("A")))],
        [entry("kube-controller-manager", engine(**env("FOO")), subresource="status")],
        [entry("kubectl-set", engine(**env("GONE")))],
        [
            {
                "manager": "kubectl-rollout",
                "operation": "Update",
                "fieldsV1": {
                    "f:spec": {
                        "f:replicas": {},
                        "f:template": {
                            "f:metadata": {
                                "f:annotations": {".": {}, "f:kubectl.kubernetes.io/restartedAt": {}}
                            }
                        },
                    }
                },
            }
        ],
    ],
    ids=[
        "nobody",
        "our own requests, changed on their way",
        "what is ours too",
        "status",
        "what is gone",
        "restart and scale",
    ],
)
def test_the_rest_stays(entries):
    assert additions(live(*entries), OURS) == []


def test_what_we_share_with_nobody_any_more_is_removed():
    """A field of ours that others set, too, stays after our manifest lost it; then it is theirs alone."""
    theirs = entry("kubectl-set", engine(**env("A")))
    assert additions(live(theirs), OURS) == []
    without = copy.deepcopy(live(theirs))
    without["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"][
        'k:{"name":"engine"}'
    ].pop("f:env")
    assert told(additions(without, OURS)) == "containers[engine].env[A] (set by kubectl-set)"


def test_a_concurrent_change_refuses_the_patch():
    before = live(entry("kubectl-set", engine(**env("FOO"))))
    patch = removal(before, additions(before, OURS), UNDO)
    before["metadata"]["generation"] += 1
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(before, patch)


def test_objects_without_pods_or_managed_fields_have_none():
    assert (
        additions({"metadata": {"managedFields": [{"manager": "a", "fieldsV1": {"f:data": {}}}]}}, OURS) == []
    )
    assert additions(LIVE, OURS) == []
    assert additions({"metadata": {"managedFields": [entry("a", {"f:containers": {}})]}}, OURS) == []


def test_many_are_told_in_short():
    found = additions(live(entry("a", {f"f:{name}": {} for name in LIVE["spec"]["template"]["spec"]})), OURS)
    assert told(found) == "nodeSelector, schedulerName (set by a)", "containers and volumes are ours as well"
    assert told(found * 3).endswith("and 1 more (set by a)")


def test_who_put_something_back_keeps_no_say_in_it():
    before = live(entry("kubectl-set", engine(**env("FOO"))), entry(UNDO, engine(**env("A"))))
    found = additions(before, OURS)
    after = jsonpatch.apply_patch(before, removal(before, found, UNDO))
    assert [each["manager"] for each in after["metadata"]["managedFields"]] == [OURS, "kubectl-set"]
    assert [each["name"] for each in after["spec"]["template"]["spec"]["containers"][1]["env"]] == [
        "A",
        "BAR",
    ]
    assert removal(after, [], UNDO) == [], "nothing is sent where there is nothing to do"
    before["metadata"]["resourceVersion"] = "43"
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(before, removal(live(entry(UNDO, {})), [], UNDO))


def test_a_pods_spec_is_put_back_whole():
    manifest = {"spec": {"template": {"spec": {"containers": []}}}}
    after = jsonpatch.apply_patch(LIVE, restoration(LIVE, manifest))
    assert after["spec"]["template"]["spec"] == {"containers": []}
    assert after["spec"]["replicas"] == 3

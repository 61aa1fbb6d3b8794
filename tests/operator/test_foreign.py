"""What others change of our objects, with kubectl and otherwise, is restored and told; what they add is theirs."""

from __future__ import annotations

import pytest
import yaml

from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

WORKLOADS = (("Deployment", "x-prefill"), ("StatefulSet", "x-decode"))
RESTARTED = "kubectl.kubernetes.io/restartedAt"


def workload(world, kind="Deployment", name="x-prefill"):
    return world.kube.get(kind, name)


def pod(world, kind="Deployment", name="x-prefill"):
    return workload(world, kind, name)["spec"]["template"]["spec"]


def events(world):
    return [each["message"] for each in world.kube.list("Event") if each["reason"] == "ForeignChangeUndone"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["set", "image", "deployment/x-prefill", "engine=spy"],
            "Deployment x-prefill: spec.template.spec.containers[engine].image (set by kubectl-set)",
        ),
        (
            ["set", "env", "deployment/x-prefill", "-c", "engine", "MINE=other"],
            "Deployment x-prefill: spec.template.spec.containers[engine].env[MINE].value (set by kubectl-set)",
        ),
        (["label", "service/x", "eldr.dev/role-"], ""),
        (
            ["label", "service/x", "app.kubernetes.io/part-of=platform", "--overwrite"],
            "Service x: metadata.labels.app.kubernetes.io/part-of (set by kubectl-label)",
        ),
        (
            ["label", "service/x", "app.kubernetes.io/part-of-"],
            "Service x: metadata.labels.app.kubernetes.io/part-of (removed)",
        ),
    ],
    ids=["image", "variable", "what is none of ours", "label", "no label"],
)
def test_what_others_change_of_ours_is_restored_and_told(operator, world, command, told):
    world.up(prefill={"env": [{"name": "MINE", "value": "1"}]})
    kind, name = ("Service", "x") if command[0] == "label" else ("Deployment", "x-prefill")
    before = world.kube.get(kind, name)
    world.kube.kubectl(*command)

    def is_restored():
        found = world.kube.get(kind, name)
        return (found["spec"], found["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])

    wait_for(is_restored, "what it was", 60, lambda: world.kube.get(kind, name))
    if told:
        wait_for(lambda: events(world), "an event")
    else:
        passes = operator.passes()
        wait_for(lambda: operator.passes() >= passes + 4, "four looks at it", 90)
    assert [each.startswith(told) for each in events(world)] == [True] * bool(told), events(world)


@pytest.mark.parametrize(
    "command",
    [
        ["set", "env", "deployment/x-prefill", "-c", "engine", "FOO=bar", "BAR=2"],
        ["set", "resources", "deployment/x-prefill", "-c", "engine", "--limits=memory=1Gi"],
        [
            *("patch", "deployment/x-prefill", "--patch"),
            '{"spec": {"template": {"spec": {"containers": [{"name": "spy", "image": "spy"}], "hostNetwork": true}}}}',
        ],
    ],
    ids=["env", "resources", "container"],
)
def test_what_others_add_is_theirs(operator, world, command):
    world.up()
    world.kube.kubectl(*command)
    before, generation = pod(world), workload(world)["metadata"]["generation"]
    world.patch(prefill={"replicas": 2})  # what is ours is still written
    wait_for(lambda: workload(world)["spec"]["replicas"] == 2, "scaled")
    passes = operator.passes()
    wait_for(lambda: operator.passes() >= passes + 4, "four looks at it", 90)
    assert pod(world) == before
    assert workload(world)["metadata"]["generation"] == generation + 1
    assert events(world) == []


def test_what_the_api_server_does_not_let_us_apply_beside_an_addition_is_told(world):
    """A volume of ours with another source: with both at once the object is invalid."""
    world.up()
    volume = {"name": "tmp", "emptyDir": None, "hostPath": {"path": "/mnt"}}
    world.kube.strategic("StatefulSet", "x-decode", {"spec": {"template": {"spec": {"volumes": [volume]}}}})
    condition = world.condition("Progressing", status="False", reason="ChildRefused")
    assert "StatefulSet x-decode: " in condition["message"]
    assert "are also set by python-httpx" in condition["message"]
    world.kube.strategic(
        "StatefulSet",
        "x-decode",
        {"spec": {"template": {"spec": {"volumes": [volume | {"emptyDir": {}, "hostPath": None}]}}}},
    )
    world.make_ready()
    world.condition("ConfigValid", status="True")


def test_restarts_annotations_and_scaling_by_others_go_on_working(operator, world):
    world.up()
    world.kube.kubectl("rollout", "restart", "deployment/x-prefill", "statefulset/x-decode")
    world.kube.kubectl("annotate", "deployment/x-prefill", "team=a")

    def wait_for_passes() -> None:
        before = operator.passes()
        wait_for(lambda: operator.passes() >= before + 4, "four looks at it", 90)

    wait_for_passes()  # until then the controllers of Kubernetes have written their annotations
    before = {name: workload(world, kind, name)["metadata"]["generation"] for kind, name in WORKLOADS}
    wait_for_passes()
    for kind, name in WORKLOADS:
        found = workload(world, kind, name)
        assert RESTARTED in found["spec"]["template"]["metadata"]["annotations"]
        assert found["metadata"]["generation"] == before[name]
    assert workload(world)["metadata"]["annotations"]["team"] == "a"
    assert events(world) == []
    world.make_ready()


@pytest.fixture
def policy(installed, kube):
    """What a platform team does to every Deployment of a namespace, whoever writes it."""
    name = f"fqdn-{kube.namespace}"
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    mutation = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{setHostnameAsFQDN: true}}}}"
    selector = {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}
    objects = [
        (
            "MutatingAdmissionPolicy",
            {
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "mutations": [
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}
                ],
            },
        ),
        ("MutatingAdmissionPolicyBinding", {"policyName": name}),
    ]
    made = [
        {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in objects
    ]
    installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))
    yield "setHostnameAsFQDN"
    installed.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(made))


def test_what_admission_makes_of_our_own_requests_stays(policy, world):
    def is_in_force() -> bool:
        labels = {"app": "probe"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        made = world.kube.create("Deployment", {"name": "probe"}, spec=spec)
        world.kube.delete("Deployment", "probe")
        return made["spec"]["template"]["spec"].get(policy) is True

    wait_for(is_in_force, "the policy")
    world.up()
    before = pod(world)
    assert before[policy] is True
    world.kube.kubectl("set", "image", "deployment/x-prefill", "engine=spy")
    wait_for(lambda: events(world), "an event")
    wait_for(lambda: pod(world) == before, "what it was", 60, lambda: pod(world))
    assert policy not in events(world)[0]
    assert len(events(world)) == 1

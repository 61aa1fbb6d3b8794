"""What others add to our pods, with kubectl and otherwise: undone and told; what is none of ours goes on working."""

from __future__ import annotations

import time

import pytest
import yaml

from eldr_operator.kube.api import path
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

WORKLOADS = (("Deployment", "x-prefill"), ("StatefulSet", "x-decode"))
RESTARTED = "kubectl.kubernetes.io/restartedAt"


def kubectl(world, *arguments):
    return world.kube.cluster.kubectl("-n", world.kube.namespace, *arguments)


def workload(world, kind="Deployment", name="x-prefill"):
    return world.kube.get(kind, name)


def pod(world, kind="Deployment", name="x-prefill"):
    return workload(world, kind, name)["spec"]["template"]["spec"]


def events(world):
    return [each["message"] for each in world.kube.list("Event") if each["reason"] == "ForeignChangeUndone"]


def until_as_before(world, before, *which):
    wait_for(lambda: pod(world, *which) == before, "what it was", 60, lambda: pod(world, *which))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["set", "env", "deployment/x-prefill", "-c", "engine", "FOO=bar", "BAR=2"],
            "containers[engine].env[",
        ),
        (
            ["set", "resources", "deployment/x-prefill", "-c", "engine", "--limits=cpu=1,memory=1Gi"],
            "containers[engine].resources.limits",
        ),
        (
            [
                *("patch", "deployment/x-prefill", "--patch"),
                '{"spec": {"template": {"spec": {"containers": [{"name": "spy", "image": "spy"}], "hostNetwork": true}}}}',
            ],
            "containers[spy]",
        ),
        (
            ["set", "env", "deployment/x-prefill", "-c", "engine", "--from=secret/x-admin"],
            "containers[engine].env[TOKEN]",
        ),
    ],
    ids=["env", "resources", "container", "env from a secret"],
)
def test_additions_are_undone_and_told(world, command, told):
    world.up()
    before = pod(world)
    kubectl(world, *command)
    until_as_before(world, before)
    wait_for(lambda: events(world), "an event", 60)
    assert f"Deployment x-prefill: {told}" in events(world)[0]
    assert f"(set by kubectl-{command[0]}) was removed" in events(world)[0]
    assert len(events(world)) == 1
    world.condition("ConfigValid", status="True")


def test_a_tool_that_adds_the_same_again_and_again_is_told_once(world):
    world.up()
    before = pod(world)
    for _ in range(3):
        kubectl(world, "set", "env", "deployment/x-prefill", "FOO=bar")
        until_as_before(world, before)
    wait_for(lambda: events(world), "an event", 60)
    time.sleep(1)
    assert len(events(world)) == 1
    kubectl(world, "set", "env", "deployment/x-prefill", "FOO=bar")
    condition = world.condition("Progressing", status="False", reason="ForeignConflict")
    assert "containers[engine].env[FOO]" in condition["message"]
    assert "(set by kubectl-set) comes back" in condition["message"]
    generation = workload(world)["metadata"]["generation"]
    world.patch(prefill={"replicas": 2})  # what is ours is still written
    wait_for(lambda: workload(world)["spec"]["replicas"] == 2, "scaled", 60)
    world.condition("Progressing", status="False", reason="ForeignConflict")
    assert workload(world)["metadata"]["generation"] == generation + 1
    assert pod(world)["containers"][0]["env"][-1] == {"name": "FOO", "value": "bar"}
    kubectl(world, "set", "env", "deployment/x-prefill", "FOO-")
    world.make_ready()
    world.condition("Progressing", status="True")


def test_what_the_api_server_would_not_let_us_apply_beside_it_is_undone(world):
    """A volume and a variable of ours with another source: with both at once the object is invalid."""
    world.up()
    which = ("StatefulSet", "x-decode")
    before = pod(world, *which)
    managers = lambda: {entry["manager"] for entry in workload(world, *which)["metadata"]["managedFields"]}  # noqa: E731
    usual = managers()
    volume = {"name": "tmp", "emptyDir": None, "hostPath": {"path": "/mnt"}}
    variable = {"name": "POD_IP", "value": "::1", "valueFrom": None}
    patch = {"volumes": [volume], "containers": [{"name": "engine", "env": [variable]}]}
    changed = world.kube.strategic(*which, {"spec": {"template": {"spec": patch}}})
    assert changed["spec"]["template"]["spec"] != before
    until_as_before(world, before, *which)
    wait_for(lambda: events(world), "an event", 60)
    assert "StatefulSet x-decode: " in events(world)[0]
    world.condition("ConfigValid", status="True")
    # in the next pass, where a controller wrote the status meanwhile
    wait_for(lambda: managers() == usual, "no traces", 60, managers)
    # What was put back is ours alone: it goes when the manifest lets it go.
    world.patch(
        decode={"podTemplate": {"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/tmp"}}]}}}
    )
    wait_for(
        lambda: pod(world, *which)["volumes"] == [{"name": "tmp", "hostPath": {"path": "/tmp", "type": ""}}],
        "the volume of the podTemplate",
        60,
        lambda: pod(world, *which),
    )
    world.condition("ConfigValid", status="True")


@pytest.mark.parametrize(
    ("test", "value", "message"),
    [
        ("/metadata/generation", 99, "the server rejected our request due to an error in our request"),
        ("/metadata/name", "x", 'Deployment.apps "x" is invalid: spec.template.spec.containers[0].image'),
    ],
    ids=["something else changed", "the object would be invalid"],
)
def test_the_api_server_tells_a_lost_race_from_a_bad_patch(kube, test, value, message):
    """By the answer's message, as the operator does: one is tried again in silence, the other told."""
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    kube.create("Deployment", {"name": "x"}, spec={"selector": {"matchLabels": labels}, "template": template})
    patch = [
        {"op": "test", "path": test, "value": value},
        {"op": "remove", "path": "/spec/template/spec/containers/0/image"},
    ]
    with pytest.raises(Refused) as refusal:
        kube.request("PATCH", path("Deployment", kube.namespace, "x"), patch, "application/json-patch+json")
    assert refusal.value.status == 422
    assert str(refusal.value).startswith(message)


def test_restarts_annotations_and_scaling_by_others_go_on_working(operator, world):
    world.up()
    kubectl(world, "rollout", "restart", "deployment/x-prefill", "statefulset/x-decode")
    kubectl(world, "annotate", "deployment/x-prefill", "team=a")

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

    wait_for(is_in_force, "the policy", 60)
    world.up()
    before = pod(world)
    assert before[policy] is True
    kubectl(world, "set", "env", "deployment/x-prefill", "-c", "engine", "FOO=bar")
    wait_for(lambda: events(world), "an event", 60)
    until_as_before(world, before)
    assert policy not in events(world)[0]
    assert len(events(world)) == 1

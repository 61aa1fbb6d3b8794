"""Create, change, scale, delete; against a real API server, with the chart's rights."""

from __future__ import annotations

import pytest

from eldr import contract
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from tests.operator.world import KIND, SCALER, simulated
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

CHILDREN = {
    "ConfigMap": ["x-routing"],
    "Deployment": ["x-prefill"],
    "EldrScaler": ["x-decode", "x-prefill"],
    "NetworkPolicy": ["x"],
    "PodDisruptionBudget": ["x-decode", "x-prefill"],
    "Role": ["x-router"],
    "RoleBinding": ["x-router"],
    "Secret": ["x-admin"],
    "Service": ["x", "x-decode"],
    "ServiceAccount": ["x-engine", "x-router"],
    "StatefulSet": ["x-decode"],
}
OWNED = f"{contract.LABEL_DEPLOYMENT}=x,{contract.LABEL_MANAGED_BY}={contract.FIELD_MANAGER}"


def children(world) -> dict[str, list[str]]:
    found = {kind: [each["metadata"]["name"] for each in world.kube.list(kind, OWNED)] for kind in CHILDREN}
    return {kind: sorted(names) for kind, names in found.items()}


def test_created_becomes_ready(world):
    world.deploy()
    world.condition("Available", status="False", reason="NoPrefillEngine")
    world.condition("CentroidsActive", status="False", reason="LearnedPrior")
    assert children(world) == CHILDREN
    ready = world.make_ready()
    assert ready["message"] == "1 prefill, 2 decode, 1 router ready"
    world.until(
        lambda: world.status["router"].get("policyInEffect") == "MarginalUnion",
        "policy",
    )
    status = world.status
    assert status["url"] == f"http://x.{world.kube.namespace}.svc"
    assert (status["prefill"]["summary"], status["decode"]["summary"]) == ("1/1", "2/2")
    columns = world.kube.kubectl("get", "eldr")
    assert columns.split()[:6] == ["NAME", "MODEL", "READY", "REASON", "PREFILL", "DECODE"]
    assert columns.splitlines()[1].split()[:6] == ["x", "org/tiny", "True", "AllReady", "1/1", "2/2"]
    world.until_told("Ready")
    events = [e["reason"] for e in world.kube.list("Event") if e["involvedObject"]["kind"] == KIND]
    assert events.count("Ready") == 1


def test_a_network_policy_comes_and_goes_with_its_field(world):
    world.up()
    made = world.kube.get("NetworkPolicy", "x")["spec"]
    assert made["podSelector"]["matchLabels"] == {contract.LABEL_DEPLOYMENT: "x"}
    assert len(made["ingress"]) == 2, "this operator runs outside the cluster"
    generations = {pod["metadata"]["uid"] for pod in world.kube.list("Pod")}
    world.patch(networkPolicy="Disabled")
    wait_for(lambda: world.kube.find("NetworkPolicy", "x") is None, "no policy")
    world.patch(networkPolicy="Enabled")
    wait_for(lambda: world.kube.find("NetworkPolicy", "x"), "a policy again")
    assert {pod["metadata"]["uid"] for pod in world.kube.list("Pod")} == generations


def test_hot_settings_change_without_a_restart(world):
    world.up()
    before = world.workload("prefill"), world.workload("decode")
    world.patch(
        router={
            "tau": "0.25",
            "policy": "JSQ",
            "domains": [{"name": "code"}, {"name": "law", "share": 3}],
            "maxLoad": "1.25",
            "minCandidates": 2,
            "maxInFlightPerDecode": 9,
        },
        signatures={"samplePercent": 50},
    )
    wait_for(lambda: world.routing["tau"] == 0.25, "tau")
    wanted = {
        "policy": "JSQ",
        "domains": [{"name": "code", "share": 1}, {"name": "law", "share": 3}],
        "max_load": 1.25,
        "min_candidates": 2,
        "max_in_flight": 9,
        "sample_rate": 0.5,
        "slots": 2,
    }
    assert {key: world.routing[key] for key in wanted} == wanted
    world.condition("CentroidsActive", reason="PolicyIgnoresCentroids", status="False")
    after = world.workload("prefill"), world.workload("decode")
    assert [each["metadata"]["generation"] for each in before] == [
        each["metadata"]["generation"] for each in after
    ]


def test_decode_engines_are_scaled_by_their_scaler(world):
    world.up()
    world.kube.kubectl("scale", "eldrscaler/x-decode", "--replicas=3")
    wait_for(lambda: world.routing["slots"] == 3, "three slots")
    world.condition("DecodeReady", status="False")
    world.make_ready()
    scale = wait_for(lambda: scale_of(world, "x-decode", 3), "three exist")
    pods = world.kube.list("Pod", scale["status"]["selector"])
    assert sorted(pod["metadata"]["name"] for pod in pods) == ["x-decode-0", "x-decode-1", "x-decode-2"]
    assert [pod["metadata"]["labels"][contract.LABEL_STATEFULSET_INDEX] for pod in pods] == ["0", "1", "2"]
    with pytest.raises(Refused, match="at most 64 for decode"):
        world.kube.merge(SCALER, "x-decode", {"spec": {"replicas": 65}}, "scale")
    with pytest.raises(Refused, match="greater than or equal to 1"):
        world.kube.merge(SCALER, "x-decode", {"spec": {"replicas": 0}}, "scale")


def test_replicas_are_those_of_the_spec_until_somebody_sets_them_and_once_they_are_handed_back(world):
    def replicas() -> int:
        return world.workload("prefill")["spec"]["replicas"]

    world.up()
    world.patch(prefill={"replicas": 2})
    wait_for(lambda: replicas() == 2, "as the spec says")
    world.kube.kubectl("scale", "eldrscaler/x-prefill", "--replicas=3")
    wait_for(lambda: replicas() == 3, "as the scaler says")
    wait_for(lambda: world.status["prefill"].get("scaledBy") == "kubectl", "who has set it")
    world.patch(prefill={"replicas": 1, "drainSeconds": 5})
    generation = world.kube.get(KIND, "x")["metadata"]["generation"]
    wait_for(lambda: world.status["observedGeneration"] == generation, "the spec seen")
    assert replicas() == 3
    assert world.kube.get(SCALER, "x-prefill")["spec"]["replicas"] == 3
    before = world.kube.get(SCALER, "x-prefill")
    world.kube.delete(SCALER, "x-prefill")

    def made_again():
        found = world.kube.find(SCALER, "x-prefill")
        return found if found and found["metadata"]["uid"] != before["metadata"]["uid"] else None

    assert wait_for(made_again, "made again")["spec"]["replicas"] == 3, "what runs stays"
    world.patch(prefill={"drainSeconds": 6})
    wait_for(lambda: world.status["observedGeneration"] == generation + 1, "another pass")
    assert (replicas(), world.status["prefill"]["scaledBy"]) == (3, "kubectl")
    annotation = f"{contract.ANNOTATION_REPLICAS}={contract.HANDED_BACK}"
    world.kube.kubectl("annotate", "eldrscaler/x-prefill", annotation, "--overwrite")
    wait_for(lambda: replicas() == 1, "as the spec says")
    wait_for(lambda: "scaledBy" not in world.status["prefill"], "nobody else has set it")
    assert world.kube.get(SCALER, "x-prefill")["spec"]["replicas"] == 1


def scale_of(world, name, exist):
    url = f"/apis/eldr.dev/v1alpha1/namespaces/{world.kube.namespace}/eldrscalers/{name}/scale"
    found = world.kube.request("GET", url)
    return found if found["status"]["replicas"] == exist else None


def test_routers_move_into_a_deployment_and_back(world):
    world.up()
    world.patch(router={"placement": "Deployment", "replicas": 2})
    world.make_ready()
    assert "x-router" in children(world)["Deployment"]
    template = world.template("prefill")
    assert "initContainers" not in template["spec"]
    assert contract.LABEL_ROUTER not in template["metadata"]["labels"]
    world.patch(router={"placement": "Sidecar", "replicas": None})

    def asked() -> bool:
        spec = world.template("prefill")["spec"]
        return "initContainers" in spec and world.status["observedGeneration"] == 3

    wait_for(asked, "routers beside prefill engines")
    assert "x-router" in children(world)["Deployment"], "clients need them until the others are ready"
    world.make_ready()
    wait_for(
        lambda: children(world) == CHILDREN, "router Deployment and budget gone", 60, lambda: children(world)
    )


@pytest.mark.parametrize(
    "labels", [{}, {contract.LABEL_MANAGED_BY: contract.FIELD_MANAGER, contract.LABEL_DEPLOYMENT: "x"}]
)
def test_a_foreign_object_of_the_same_name_is_left_alone(world, labels):
    foreign = {"selector": {"app": "mine"}, "ports": [{"port": 1234}]}
    world.kube.create("Service", {"name": "x", "labels": labels}, spec=foreign)
    world.deploy()
    condition = world.condition("ConfigValid", status="False", reason="ChildRefused")
    assert "Service x exists and belongs to nobody; delete or rename it" in condition["message"]
    assert world.kube.get("Service", "x")["spec"]["selector"] == {"app": "mine"}
    world.kube.delete("Service", "x")
    world.condition("ConfigValid", status="True")
    assert world.kube.get("Service", "x")["spec"]["ports"][0]["port"] == 80


def test_what_the_api_server_cannot_check_is_a_condition_and_the_rest_goes_on(world):
    world.up()
    world.patch(
        refit={"schedule": "61 * * * *", "timeZone": "Mars/Olympus"},
        router={"tau": "0.3"},
        decode={"podTemplate": {"spec": {"containers": [{"image": "nameless"}]}}},
    )
    condition = world.condition("ConfigValid", status="False", reason="InvalidSchedule")
    for part in (
        "spec.refit.schedule: '61 * * * *'",
        "write five cron fields",
        "spec.refit.timeZone: 'Mars/Olympus'",
    ):
        assert part in condition["message"]
    assert "spec.decode.podTemplate.spec.containers[0]" in condition["message"]
    world.condition("Ready", status="False", reason="InvalidSchedule")
    world.condition("Available", status="True")
    wait_for(lambda: world.routing["tau"] == 0.3, "tau")
    assert world.workload("decode")["metadata"]["generation"] == 1
    world.patch(refit={"schedule": "1 * * * *", "timeZone": None}, decode={"podTemplate": None})
    world.condition("ConfigValid", status="True")


def test_pod_troubles_reach_the_condition(world):
    world.deploy()
    condition = world.condition("PrefillReady", status="False", reason="InsufficientCapacity")
    assert "no nodes available" in condition["message"]


def test_deleted_with_everything_it_owns(world):
    world.up()
    world.fit("mine", k=2)
    world.report("mine")
    world.until_active("mine")
    world.kube.delete(KIND, "x")
    gone = {kind: [] for kind in CHILDREN}
    wait_for(lambda: children(world) == gone, "children gone", 90, lambda: children(world))
    wait_for(lambda: not world.kube.list(contract.KIND_FIT), "fits gone", 90)
    wait_for(lambda: not world.kube.list("ConfigMap", contract.LABEL_FIT), "shards gone", 90)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Deployment", "x-prefill"), ("Service", "x"), ("Role", "x-router"), ("ConfigMap", "x-routing")],
)
def test_labels_that_are_taken_away_come_back(world, kind, name):
    world.up()
    before = world.kube.get(kind, name)["metadata"]
    taken = dict.fromkeys((contract.LABEL_DEPLOYMENT, contract.LABEL_MANAGED_BY))
    world.kube.merge(kind, name, {"metadata": {"labels": taken}})
    labels = lambda: world.kube.get(kind, name)["metadata"].get("labels")  # noqa: E731
    wait_for(lambda: labels() == before["labels"], "the labels", 60, labels)
    assert world.kube.get(kind, name)["metadata"]["uid"] == before["uid"]
    world.patch(router={"maxInFlightPerDecode": 99})
    wait_for(lambda: world.routing["max_in_flight"] == 99, "a living operator", 60, lambda: world.routing)


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "x-prefill"), ("StatefulSet", "x-decode")])
def test_what_others_change_of_our_labels_and_annotations_comes_back(world, kind, name):
    """That makes no new generation of a StatefulSet: rollouts are judged by the annotation, and the label says what the pods are for."""
    world.up()
    before = world.kube.get(kind, name)["metadata"]
    changed = {
        "labels": {contract.LABEL_COMPONENT: "other", "team": "a"},
        "annotations": {ANNOTATION_REVISION: "other"},
    }
    world.kube.merge(kind, name, {"metadata": changed})
    metadata = lambda: world.kube.get(kind, name)["metadata"]  # noqa: E731
    wait_for(lambda: metadata()["labels"] == before["labels"] | {"team": "a"}, "the labels", 60, metadata)
    assert metadata()["annotations"][ANNOTATION_REVISION] == before["annotations"][ANNOTATION_REVISION]


def test_children_that_nobody_owns_are_adopted_as_they_are(world):
    world.up()
    world.patch(decode={"env": [{"name": "CHANGED", "value": "1"}]})
    world.make_ready()
    world.condition("Progressing", reason="RolloutComplete")
    wait_for(lambda: len(world.kube.list("Pod")) == 3, "no pod that ends")
    world.serve("one")
    kept = (("StatefulSet", "x-decode"), ("Deployment", "x-prefill"), ("ConfigMap", "x-routing"))
    before = {kind: world.kube.get(kind, name)["metadata"] for kind, name in kept}
    pods = {pod["metadata"]["uid"] for pod in world.kube.list("Pod", contract.LABEL_ROLE)}
    world.kube.kubectl("delete", "eldr", "x", "--cascade=orphan")
    world.deploy(decode={"env": [{"name": "CHANGED", "value": "1"}]})
    world.make_ready()
    world.until_active("one")
    world.condition("ConfigValid", status="True")
    uid = world.kube.get(KIND, "x")["metadata"]["uid"]
    for kind, name in kept:
        after = world.kube.get(kind, name)["metadata"]
        assert (after["uid"], after.get("generation")) == (
            before[kind]["uid"],
            before[kind].get("generation"),
        )
        assert [owner["uid"] for owner in after["ownerReferences"]] == [uid]
    assert {pod["metadata"]["uid"] for pod in world.kube.list("Pod", contract.LABEL_ROLE)} == pods
    assert world.routing["epoch"] == 1
    # revisions that no pod has any more go with the deployment, too: another of that name must not go back to them
    world.kube.delete(KIND, "x")
    kind, labelled = "ControllerRevision", f"{contract.LABEL_DEPLOYMENT}=x"
    wait_for(lambda: not world.kube.list(kind, labelled), "no revisions")


def test_a_deployment_that_a_finalizer_holds_says_so(world):
    finalizer = "example.com/held"
    world.up()
    world.kube.merge(KIND, "x", {"metadata": {"finalizers": [finalizer]}})
    world.kube.delete(KIND, "x")
    condition = world.condition("Ready", status="Unknown", reason="Terminating")
    assert finalizer in condition["message"]
    world.kube.merge(KIND, "x", {"metadata": {"finalizers": None}})
    wait_for(lambda: world.kube.find(KIND, "x") is None, "gone")


def test_a_name_that_the_service_of_another_needs_is_refused(world):
    with pytest.raises(Refused, match="ends in -decode"):
        world.kube.create(KIND, {"name": "y-decode"}, spec=simulated())


def test_why_decode_pods_cannot_be_created_is_told(world):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits"}}
    quota["spec"] = {"hard": {"limits.cpu": "10"}}
    world.kube.request("POST", f"/api/v1/namespaces/{world.kube.namespace}/resourcequotas", quota)
    world.deploy()
    for role in ("PrefillReady", "DecodeReady"):
        condition = world.condition(role, status="False", reason="PodsRefused")
        assert "limits.cpu" in condition["message"]
    world.fit("one")
    condition = world.until_fit("one", status="Unknown", reason="PodsRefused")
    assert "limits.cpu" in condition["message"]

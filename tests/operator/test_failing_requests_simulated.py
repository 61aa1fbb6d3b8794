"""Requests that fail or hang, bad templates and tools that disagree, on the simulated cluster: each is told, and the rest goes on."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import timedelta

import pytest

from eldr import contract
from eldr_operator import clock
from eldr_operator.errors import ApiError, NoAnswerError, RequestFailedError
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from tests.operator.chaos import changed
from tests.operator.simulated import process
from tests.operator.simulated.changes import BROKEN as NEVER_READY
from tests.operator.simulated.changes import CRASHES
from tests.operator.simulated.cluster import Simulated
from tests.operator.world import FIT, KIND, SCALER, simulated
from tests.support.kube import Object, Refused

CHILDREN = {
    *("ConfigMap", "ControllerRevision", "Deployment", "EldrScaler", "NetworkPolicy", "PodDisruptionBudget"),
    *("Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet"),
}
DENIED = ApiError(403, "Forbidden", "admission webhook denied the request")
BROKEN = RequestFailedError(500, "InternalError", "failed calling webhook: context deadline exceeded")
SILENT = NoAnswerError("PATCH: no answer from the API server in 15 s")
NEVER = {"env": changed(NEVER_READY), "rollout": {"progressDeadlineSeconds": 30}}
EITHER = pytest.mark.parametrize("role", ["decode", "prefill"])


@pytest.mark.parametrize(
    ("kinds", "error", "seconds"), [(CHILDREN, BROKEN, 10.0), ({"Service"}, SILENT, 15.0)]
)
def test_a_new_deployment_whose_children_hang_has_a_status(bare, kinds, error, seconds):
    bare.fail(error, lambda asked: asked.kind in kinds, seconds)
    bare.world.deploy()
    bare.minutes(10)
    assert bare.is_current()
    assert bare.told("Progressing") == ("False", "ChildUnavailable")


def test_a_service_that_cannot_be_written_hides_no_lost_engines(it):
    it.fail(SILENT, lambda asked: asked.kind == "Service", 15.0)
    it.kube.delete("Service", "x")
    it.controllers.quota.add("n")
    for pod in it.kube.list("Pod", f"{contract.LABEL_ROLE}=decode"):
        it.kube.delete("Pod", pod["metadata"]["name"])
    it.minutes(5)
    assert it.told("Available")[0] == "False"
    assert it.told("Ready")[0] == "False"


def test_events_that_cannot_be_read_hide_no_lost_engine(it):
    it.operator.client.faults.append(lambda asked: BROKEN if asked.kind == "Event" else None)
    it.controllers.quota.add("n")
    it.kube.delete("Pod", "x-decode-1")
    it.minutes(5)
    assert it.world.status["decode"]["ready"] == 1


@pytest.mark.parametrize(
    ("error", "seconds", "fits"), [(DENIED, 0.0, 1), (BROKEN, 0.0, 1), (SILENT, 15.0, 5)]
)
def test_fits_that_cannot_be_adopted_keep_nothing_else(it, error, seconds, fits):
    it.fail(error, lambda asked: (asked.method, asked.kind) == ("PATCH", FIT), seconds)
    for number in range(fits):
        it.world.fit(f"f{number}")
    it.world.patch(router={"tau": "0.3"})
    it.minutes(5)
    assert str(it.world.routing["tau"]) == "0.3"
    assert it.is_current()
    assert it.told("Progressing")[0] == "False"


def test_sets_that_cannot_be_owned_keep_no_status_back(it):
    it.fail(
        DENIED,
        lambda asked: (
            (asked.method, asked.kind) == ("PATCH", "ConfigMap") and asked.name != contract.routing_name("x")
        ),
    )
    it.world.fit("one")
    it.world.report("one")
    it.minutes(5)
    assert it.world.active() == "one"
    it.world.patch(decode={"replicas": 3})
    it.minutes(5)
    assert it.is_current()


@pytest.mark.parametrize(
    ("part", "template"),
    [
        (
            "prefill",
            {"spec": {"containers": [{"name": "engine", "startupProbe": {"periodSeconds": "10s"}}]}},
        ),
        ("decode", {"metadata": "x"}),
        ("router", {"metadata": {"annotations": {"team": 1}}}),
        ("refit", {"metadata": {"labels": "team=a"}}),
    ],
)
def test_a_template_that_is_none_is_told_and_nothing_else_waits(bare, part, template):
    asked = {"router": {"placement": "Deployment"}, "prefill": {"replicas": 2}}
    bare.up(router=asked["router"])
    asked[part] = asked.get(part, {}) | {"podTemplate": template}
    bare.world.patch(**asked)
    bare.minutes(3)
    assert bare.is_current()
    assert bare.told("ConfigValid") == ("False", "InvalidPodTemplate")
    assert bare.world.workload("prefill")["spec"]["replicas"] == 2


def test_the_other_role_goes_on_and_progressing_names_the_one_that_waits(it):
    before = it.world.template("decode")
    it.world.patch(engine={"image": "other:2"}, decode={"podTemplate": {"metadata": "x"}})
    it.minutes(3)
    assert "other:2" in str(it.world.template("prefill"))
    assert it.world.template("decode") == before
    assert "decode" in it.message("Progressing")
    assert it.told("Degraded") == ("True", "NoMatchingPrefill")
    it.world.patch(decode={"podTemplate": None})
    it.minutes(3)
    assert it.told("Degraded")[0] == "False"


@pytest.mark.parametrize(
    "asked",
    [
        {"rollout": {"revision": "x-prefill-1"}},
        {"rollout": {"revision": "x-decode-1"}},
        {"podTemplate": {"metadata": "x"}},
    ],
    ids=str,
)
def test_a_role_whose_pods_cannot_be_made_as_asked_keeps_its_template(it, asked):
    """It is still scaled, and a workload that is deleted comes back as it was."""
    before = it.world.template("decode")
    it.world.patch(decode={"env": changed("1"), **asked})
    it.kube.merge(SCALER, "x-decode", {"spec": {"replicas": 4}}, "scale")
    it.minutes(2)
    assert it.told("ConfigValid")[0] == it.told("Ready")[0] == "False"
    assert it.told("DecodeReady") == ("True", "AllReady")
    live = it.world.workload("decode")["spec"]
    assert (live["replicas"], live["template"]) == (4, before)
    it.kube.delete("StatefulSet", "x-decode")
    it.minutes(2)
    assert it.told("Ready")[0] == "False"
    assert it.told("Available")[0] == "True"
    assert it.world.template("decode") == before


@EITHER
def test_a_role_whose_template_only_the_api_server_refuses_is_scaled_and_keeps_its_template(
    it, monkeypatch, role
):
    store = it.simulation.store
    apply, before = store.apply, it.world.template(role)

    def strict(manifest: Object, manager: str, subresource: str = "") -> Object:
        if manifest["kind"] in {"Deployment", "StatefulSet"} and "unheard" in str(manifest):
            raise Refused(422, ".spec.template.spec.unheard: field not declared in schema")
        return apply(manifest, manager, subresource)

    monkeypatch.setattr(store, "apply", strict)
    it.world.patch(**{role: {"podTemplate": {"spec": {"unheard": 1}}}})
    it.kube.merge(SCALER, f"x-{role}", {"spec": {"replicas": 4}}, "scale")
    it.minutes(2)
    assert it.told("Progressing") == ("False", "ChildRefused")
    live = it.world.workload(role)
    assert (live["spec"]["replicas"], live["spec"]["template"]) == (4, before)
    it.minutes(2)
    assert it.world.workload(role) == live, "nothing writes it again"
    it.world.patch(**{role: {"podTemplate": None}})
    it.minutes(2)
    assert it.told("Progressing") == ("True", "RolloutComplete")


def test_routers_beside_prefill_engines_stay_until_one_of_the_deployment_is_ready(bare):
    refused = {"spec": {"containers": [{"name": contract.CONTAINER_ROUTER, "args": []}]}}
    bare.up()
    bare.world.patch(router={"placement": "Deployment", "podTemplate": refused}, prefill={"replicas": 2})
    bare.minutes(3)
    assert bare.told("ConfigValid") == ("False", "InvalidPodTemplate")
    assert bare.told("Available")[0] == "True"
    assert bare.world.workload("prefill")["status"]["readyReplicas"] == 2
    bare.world.patch(router={"podTemplate": None})
    bare.world.make_ready()
    found = bare.kube.list("Pod", f"{contract.LABEL_ROUTER}=true")
    assert {pod["metadata"]["labels"][contract.LABEL_ROLE] for pod in found} == {contract.ROLE_ROUTER}


def test_a_failed_template_of_prefill_is_not_tried_again_when_routers_are_away_for_a_moment(it):
    away = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    it.world.patch(router={"placement": "Deployment"}, prefill=NEVER)
    it.minutes(5)
    assert it.told("Progressing") == ("False", "RolledBack")
    for pod in it.kube.list("Pod", f"{contract.LABEL_ROLE}={contract.ROLE_ROUTER}"):
        it.kube.strategic("Pod", pod["metadata"]["name"], away, "status")
    it.pass_(30)
    assert it.told("Progressing") == ("False", "RolledBack")


def test_prefill_engines_make_room_for_each_other_where_a_quota_is_full(bare):
    bare.up(prefill={"replicas": 2})
    prefill = f"{contract.LABEL_ROLE}=prefill"
    bare.controllers.refuses = lambda _: len(bare.kube.list("Pod", prefill)) >= 2
    bare.controllers.refusal = (
        "pods are forbidden: exceeded quota: two, requested: pods=1, used: pods=4, limited: pods=4"
    )
    bare.world.patch(prefill={"env": changed("1")})
    bare.pass_(20)
    bare.controllers.step()
    bare.pass_(20)
    assert bare.told("PrefillReady") == ("False", "PodsRefused")
    bare.minutes(6)
    assert bare.told("Progressing") == ("True", "RolloutComplete")
    assert bare.told("PrefillReady") == ("True", "AllReady")


@EITHER
def test_engines_that_are_ready_for_a_moment_and_crash_stop_the_rollout_at_the_first(bare, role):
    bakes = {"replicas": 4, "rollout": {"minReadySeconds": 60}}
    bare.world.up(**{role: bakes})
    bare.minutes(3)
    assert bare.told("Progressing") == ("True", "RolloutComplete")
    before = bare.world.template(role)
    bare.world.patch(**{role: {"env": changed(CRASHES)}})
    most = 0
    for _ in range(150):
        bare.pass_(2)
        bare.controllers.step()
        bare.world.run_pods()
        pods = bare.kube.list("Pod", f"{contract.LABEL_ROLE}={role}")
        new = [pod for pod in pods if CRASHES in str(pod["spec"])]
        most = max(most, len(new))
    assert most == 1, "engines that had the new template at one time"
    assert bare.told("Progressing") == ("False", "RolledBack")
    assert bare.told(f"{role.capitalize()}Ready") == ("True", "AllReady")
    assert bare.world.template(role) == before
    assert "RolloutRolledBack" in bare.world.events()


@EITHER
def test_a_rollout_whose_pods_are_refused_goes_back(bare, role):
    refused = {"env": changed("1"), "rollout": {"progressDeadlineSeconds": 300}}
    bare.controllers.refuses = lambda template: "CHANGED" in str(template)
    bare.up()
    before = bare.world.template(role)
    bare.world.patch(**{role: refused})
    bare.minutes(4)
    assert bare.told(f"{role.capitalize()}Ready") == ("False", "PodsRefused")
    assert bare.told("Progressing") == ("True", "RolloutInProgress")
    bare.minutes(5)
    assert bare.told("Progressing") == ("False", "RolledBack")
    assert bare.told(f"{role.capitalize()}Ready") == ("True", "AllReady")
    assert bare.world.template(role) == before
    bare.world.patch(**{role: {"env": None}})
    bare.minutes(2)
    assert bare.told("Progressing") == ("True", "RolloutComplete")
    bare.world.patch(**{role: refused})
    bare.minutes(4)
    assert bare.told("Progressing") == ("True", "RolloutInProgress"), "what was refused before does not count"


@EITHER
def test_a_revision_that_is_deleted_while_its_role_is_rolled_back_to_it_comes_back(it, role):
    it.world.patch(**{role: NEVER})
    it.minutes(5)
    assert it.told("Progressing") == ("False", "RolledBack")
    name = it.world.workload(role)["metadata"]["annotations"][ANNOTATION_REVISION]
    before = it.kube.get("ControllerRevision", name)
    it.kube.delete("ControllerRevision", name)
    it.minutes(5)
    assert it.told("Progressing") == ("False", "RolledBack")
    assert it.world.workload(role)["metadata"]["annotations"][ANNOTATION_REVISION] == name
    kept = it.kube.get("ControllerRevision", name)["data"]
    assert (kept["template"], kept["images"]) == (before["data"]["template"], before["data"]["images"])
    it.world.patch(**{role: {"env": None}})
    it.minutes(2)
    assert it.told("Progressing") == ("True", "RolloutComplete")


FOUND_BY = {"metadata": {"labels": {contract.LABEL_MANAGED_BY: "platform"}}}


def _image(live: Object) -> Object:
    spec = copy.deepcopy(live["spec"])
    spec["template"]["spec"]["containers"][0]["image"] = "theirs"
    return {"spec": spec}


def _holds(live: Object, change: Object) -> bool:
    """Tell whether an object has what a change sets."""
    return all(
        _holds(live[key], value) if isinstance(value, dict) else live.get(key) == value
        for key, value in change.items()
    )


@pytest.mark.parametrize(
    ("kind", "name", "change", "subresource", "field"),
    [
        ("StatefulSet", "x-decode", {"spec": {"replicas": 5}}, "scale", "spec.replicas"),
        ("Deployment", "x-prefill", None, "", "spec.template.spec.containers[engine].image"),
        ("Service", "x", {"metadata": {"labels": {"app.kubernetes.io/part-of": "platform"}}}, "", "metadata.labels.app.kubernetes.io/part-of"),
        (SCALER, "x-decode", FOUND_BY, "", f"metadata.labels.{contract.LABEL_MANAGED_BY}"),
    ],
)  # fmt: skip
def test_another_writer_that_does_not_give_in_is_named_and_answered_ever_more_rarely(
    it, kind, name, change, subresource, field
):
    undone = 0
    for _ in range(45):
        live = it.kube.get(kind, name)
        wanted = change or _image(live)
        if not _holds(live, wanted):
            it.kube.merge(kind, name, wanted, subresource)
            undone += 1
        it.minutes(1)
    assert undone <= 1 + 3 + 5, "after 1, 2, 4, ... minutes"
    assert it.told("Progressing") == ("False", "ForeignConflict")
    events = [each for each in it.kube.list("Event") if each["reason"] == "ForeignConflict"]
    assert f"{kind} {name}: {field} (set by kubectl)" in events[0]["message"]
    assert "ForeignChangeUndone" in it.world.events()


def test_another_writer_that_gave_in_and_comes_back_is_undone_again(it):
    def scaled(count: int) -> int:
        it.kube.merge("StatefulSet", "x-decode", {"spec": {"replicas": count}}, "scale")
        it.pass_(15)
        return it.world.workload("decode")["spec"]["replicas"]

    assert [scaled(5) for _ in range(4)] == [2, 2, 2, 5]
    assert it.told("Progressing") == ("False", "ForeignConflict")
    it.world.patch(decode={"replicas": 3})
    it.minutes(1)
    assert it.world.workload("decode")["spec"]["replicas"] == 3
    it.minutes(1)
    assert it.told("Progressing")[1] != "ForeignConflict"
    it.minutes(150)
    assert [scaled(5) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("kind", sorted(CHILDREN - {"ConfigMap"}))
def test_what_the_api_server_refuses_is_tried_ever_more_rarely(bare, kind):
    asked = []
    bare.operator.client.faults.append(asked.append)
    bare.fail(DENIED, lambda found: found.kind == kind)
    bare.world.deploy()
    bare.minutes(30)
    writes = [each for each in asked if each.kind == kind and each.is_write]
    assert max(Counter(writes).values()) <= 2 * (6 + 5), "two objects can have no name yet"
    assert bare.told("Progressing") == ("False", "ChildRefused")
    assert 1 <= bare.world.events().count("ChildRefused") <= 2
    bare.operator.client.faults.clear()
    bare.minutes(6)
    assert bare.kube.list(kind)
    assert bare.told("Progressing")[1] != "ChildRefused"


def test_a_clock_that_is_ahead_for_a_moment_rolls_nothing_back(it):
    it.world.patch(decode={"env": changed("7")})
    for _ in range(4):
        it.controllers.step()
        _load(it)
        it.pass_(5)
    it.operator.ahead = timedelta(hours=1)
    it.pass_(40)
    it.operator.ahead = timedelta(0)
    it.minutes(15)
    assert it.told("Progressing") == ("True", "RolloutComplete")


def _load(it: Simulated) -> None:
    """Let new decode pods run on a node, and load weights."""
    for pod in it.kube.list("Pod", f"{contract.LABEL_ROLE}=decode"):
        names = {each["name"] for one in pod["spec"]["containers"] for each in one.get("env", ())}
        if "CHANGED" not in names or pod["spec"].get("nodeName"):
            continue
        at = clock.stamp(it.simulation.now())
        loads = [
            {"type": kind, "status": status, "lastTransitionTime": at}
            for kind, status in (("PodScheduled", "True"), ("Ready", "False"))
        ]
        name = pod["metadata"]["name"]
        it.kube.merge("Pod", name, {"spec": {"nodeName": "n1"}})
        it.kube.strategic("Pod", name, {"status": {"phase": "Running", "conditions": loads}}, "status")


def test_a_change_that_is_undone_within_the_minute_announces_no_gap(bare):
    bare.up(decode={"replicas": 1})
    before = bare.kube.get("Pod", "x-decode-0")["metadata"]["uid"]
    bare.world.patch(decode={"env": changed("5")})
    bare.pass_(20)
    bare.controllers.step()
    assert "ends at" in bare.message("Progressing")
    bare.world.patch(decode={"env": []})
    bare.pass_(10)
    assert "ends at" not in bare.message("Progressing")
    bare.minutes(3)
    assert bare.kube.get("Pod", "x-decode-0")["metadata"]["uid"] == before


@pytest.fixture
def without_resync(monkeypatch):
    """Let nothing but a change wake the operator."""
    monkeypatch.setattr(process, "RESYNC_SECONDS", 3600.0)


def _look_a_moment_later(it: Simulated) -> None:
    for _ in range(3):
        it.controllers.step()
        it.pass_(5)


@pytest.mark.usefixtures("without_resync")
def test_a_scaler_that_is_made_anew_tells_autoscalers_what_to_count(bare):
    bare.world.up()
    bare.minutes(2)
    bare.kube.delete(SCALER, "x-decode")
    _look_a_moment_later(bare)
    told = bare.kube.get(SCALER, "x-decode").get("status") or {}
    assert told.get("replicas") == 2
    assert "role=decode" in told["selector"]


@pytest.mark.usefixtures("without_resync")
@pytest.mark.parametrize("bare", [1, 2], indirect=True)
def test_engines_that_lost_their_owner_are_told_of_once_they_are_adopted(bare):
    bare.world.up()
    bare.minutes(2)
    bare.kube.merge("StatefulSet", "x-decode", {"metadata": {"ownerReferences": None}})
    _look_a_moment_later(bare)
    assert bare.world.workload("decode")["metadata"]["ownerReferences"]
    assert bare.told("Available") == ("True", "MinimumReplicasAvailable")
    assert bare.told("Ready")[0] == "True"


def test_a_spec_value_that_this_release_does_not_know_is_reported_and_what_runs_stays(bare):
    bare.world.up()
    bare.world.patch(update="Canary", decode={"replicas": 3})
    bare.minutes(2)
    assert bare.told("Ready") == ("Unknown", "SpecUnreadable")
    assert "spec.update: 'Canary'" in bare.message("Ready")
    assert bare.is_current()
    assert bare.world.events().count("SpecUnreadable") == 1
    assert bare.world.status["decode"]["ready"] == 2
    bare.world.patch(update="Manual")
    bare.world.make_ready()
    assert bare.world.status["decode"]["ready"] == 3


def test_what_another_release_serves_is_left_alone_even_where_this_one_cannot_read_it(bare):
    """Else two releases of which one knows a newer spec write each other's status away for ever."""
    held = {"holderIdentity": "b/eldr", "leaseDurationSeconds": 15}
    bare.kube.create("Lease", {"name": contract.SERVED_LEASE}, spec=held)
    bare.kube.create(KIND, {"name": "x"}, spec=simulated() | {"update": "Canary"})
    bare.pass_(10)
    assert bare.world.events() == ["ManagedElsewhere"]
    assert not bare.world.status
    bare.pass_(30)
    assert bare.told("Ready") == ("Unknown", "SpecUnreadable"), "the other one has gone"


def test_pods_that_kubernetes_fails_again_and_again_are_named_with_their_count(it):
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    for _ in range(3):
        it.kube.strategic("Pod", "x-decode-1", {"status": rejected | {"conditions": []}}, "status")
        it.pass_(2)
        it.kube.delete("Pod", "x-decode-1")  # as its controller does
        it.controllers.step()
        it.pass_(2)
    assert it.told("DecodeReady")[1] == "PodsFailed"
    assert "3 pods failed" in it.message("DecodeReady")
    assert "UnexpectedAdmissionError: no healthy devices" in it.message("DecodeReady")
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes",
        "lastTransitionTime": clock.stamp(it.kube.now()),
    }
    it.kube.strategic("Pod", "x-decode-1", {"status": {"conditions": [waits]}}, "status")
    it.pass_(70)
    assert it.told("DecodeReady")[1] == "InsufficientCapacity"
    assert "0/4 nodes" in it.message("DecodeReady")
    assert "3 pods failed" in it.message("DecodeReady"), "what its predecessors had does not go with them"


def test_a_pod_whose_node_is_lost_is_named_once_its_grace_period_is_over(it):
    ends = clock.stamp(it.simulation.now() + timedelta(seconds=30))
    lost = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": 30}
    it.kube.merge("Pod", "x-decode-1", {"metadata": lost})
    away = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    it.kube.merge("Pod", "x-decode-1", away, "status")
    it.controllers.step()
    it.pass_(20)
    assert it.told("DecodeReady") == ("False", "PodsNotReady")
    it.pass_(20)
    assert it.told("DecodeReady") == ("False", "PodStuck")
    assert "on node n is Terminating since" in it.message("DecodeReady")


@pytest.mark.parametrize("policy", ["MarginalUnion", "JSQ"])
def test_available_follows_what_routers_report(bare, policy):
    bare.up(router={"policy": policy})
    (router,) = bare.world.routers.values()
    router.problem = "pods: 401: Unauthorized; routing: 401: Unauthorized"
    bare.pass_(20)
    assert bare.told("Ready") == ("True", "AllReady")
    router.problem = None
    bare.pass_(20)
    router.problem = "pods: 401: Unauthorized; routing: 401: Unauthorized"
    bare.pass_(20)
    assert bare.told("Ready") == ("True", "AllReady"), "each refusal counts by itself"
    bare.pass_(28)
    assert bare.told("Ready") == bare.told("RouterReady") == ("False", "RouterUnauthorized")
    assert bare.told("Available")[0] == "True"
    router.decode = [{"name": "x-decode-0", "healthy": False}]
    bare.pass_(28)
    assert bare.told("Available") == bare.told("Ready") == ("False", "RouterUnauthorized")
    assert "RouterUnauthorized" in bare.world.events()
    router.problem, router.decode = None, [{"name": "x-decode-0", "healthy": True}]
    bare.pass_(28)
    assert bare.told("Available") == ("True", "MinimumReplicasAvailable")
    assert bare.told("Ready") == ("True", "AllReady")


def test_engines_that_are_ejected_for_a_moment_and_rights_that_are_new_change_no_condition(bare):
    bare.up(prefill={"replicas": 2})
    first, second = bare.world.routers.values()
    for router in (first, second):
        router.decode = [{"name": "x-decode-0", "healthy": False}]
    bare.pass_(5)
    second.decode = [{"name": "x-decode-0", "healthy": True}]
    bare.pass_(15)
    assert bare.told("Available")[0] == "True", "one of them still serves"
    assert "NoDecodeEngine" not in bare.world.events()
    second.decode = first.decode
    bare.pass_(20)
    assert bare.told("Available") == ("False", "NoDecodeEngine")
    bare.world.patch(prefill={"env": [{"name": "NEW", "value": "1"}]})
    bare.pass_(5)
    known = {*bare.world.routers}
    bare.controllers.step()
    bare.world.run_pods()
    (young,) = [router for name, router in bare.world.routers.items() if name not in known]
    young.problem = "pods: 403: pods is forbidden"
    bare.pass_(15)
    assert bare.told("RouterReady")[1] != "RouterUnauthorized"
    bare.pass_(30)
    assert bare.told("RouterReady") == ("False", "RouterUnauthorized")

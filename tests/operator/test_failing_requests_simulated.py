"""Requests that fail or hang, bad templates and tools that disagree, on the simulated cluster: each is told, and the rest goes on."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import pytest

from eldr import contract
from eldr_operator import clock
from eldr_operator.errors import ApiError, NoAnswerError, OperatorError, RequestFailedError
from eldr_operator.workloads.revisions import ANNOTATION_REVISION
from tests.fakes.kubernetes.server import Asked
from tests.fakes.kubernetes.simulation import SimulatedKube, Simulation
from tests.operator.simulated import process
from tests.operator.simulated.changes import BROKEN as NEVER_READY
from tests.operator.simulated.changes import CRASHES, SimulatedWorld
from tests.operator.simulated.process import SimulatedOperator, SimulatedRouter
from tests.operator.world import FIT, KIND, SCALER
from tests.operator.world import simulated as simulated_spec
from tests.support.deep import nested
from tests.support.kube import Object, Refused

CHILDREN = {
    *("ConfigMap", "ControllerRevision", "Deployment", "EldrScaler", "NetworkPolicy", "PodDisruptionBudget"),
    *("Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet"),
}
DENIED = ApiError(403, "Forbidden", "admission webhook denied the request")
BROKEN = RequestFailedError(500, "InternalError", "failed calling webhook: context deadline exceeded")
SILENT = NoAnswerError("PATCH: no answer from the API server in 15 s")


class Simulated(NamedTuple):
    """A cluster, its operator and a deployment's world."""

    simulation: Simulation
    operator: SimulatedOperator
    world: SimulatedWorld

    def fail(self, error: OperatorError, fails: Callable[[Asked], bool], seconds: float = 0.0) -> None:
        """Let writes of some objects wait and then fail; the status of an object is another resource."""

        def is_one(asked: Asked) -> bool:
            return asked.is_write and not asked.subresource and fails(asked)

        self.operator.client.faults += [
            lambda asked: seconds if is_one(asked) else None,
            lambda asked: error if is_one(asked) else None,
        ]

    def minutes(self, count: int) -> None:
        for _ in range(2 * count):
            self.simulation.controllers.step()
            self.world.run_pods()
            self.simulation.pass_(30)

    def told(self, condition: str) -> tuple[str, str]:
        found = self.world.kube.condition(KIND, "x", condition)
        return found["status"], found["reason"]

    def is_current(self) -> bool:
        live = self.world.kube.get(KIND, "x")
        return live["metadata"]["generation"] == (live.get("status") or {}).get("observedGeneration")


@contextmanager
def simulated(seed: int = 1) -> Iterator[Simulated]:
    random.seed(seed)
    simulation = Simulation(seed)
    operator, world = SimulatedOperator(simulation), SimulatedWorld(SimulatedKube(simulation, "n"))
    world.router_kind = SimulatedRouter
    operator.start()
    try:
        yield Simulated(simulation, operator, world)
    finally:
        simulation.close()


@pytest.mark.parametrize(
    ("kinds", "error", "seconds"), [(CHILDREN, BROKEN, 10.0), ({"Service"}, SILENT, 15.0)]
)
def test_a_new_deployment_whose_children_hang_has_a_status(kinds, error, seconds):
    with simulated() as it:
        it.fail(error, lambda asked: asked.kind in kinds, seconds)
        it.world.deploy()
        it.minutes(10)
        assert it.is_current()
        assert it.told("Progressing") == ("False", "ChildUnavailable")


def test_a_service_that_cannot_be_written_hides_no_lost_engines():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.fail(SILENT, lambda asked: asked.kind == "Service", 15.0)
        it.world.kube.delete("Service", "x")
        it.simulation.controllers.quota.add("n")
        for pod in it.world.kube.list("Pod", f"{contract.LABEL_ROLE}=decode"):
            it.world.kube.delete("Pod", pod["metadata"]["name"])
        it.minutes(5)
        assert it.told("Available")[0] == "False"
        assert it.told("Ready")[0] == "False"


def test_events_that_cannot_be_read_hide_no_lost_engine():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.operator.client.faults.append(lambda asked: BROKEN if asked.kind == "Event" else None)
        it.simulation.controllers.quota.add("n")
        it.world.kube.delete("Pod", "x-decode-1")
        it.minutes(5)
        assert it.world.status["decode"]["ready"] == 1


@pytest.mark.parametrize("error", [DENIED, BROKEN])
def test_a_fit_that_cannot_be_adopted_keeps_nothing_else(error):
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.fail(error, lambda asked: (asked.method, asked.kind) == ("PATCH", FIT))
        it.world.fit("one")
        it.world.patch(router={"tau": "0.3"})
        it.minutes(5)
        assert str(it.world.routing["tau"]) == "0.3"
        assert it.is_current()
        assert it.told("Progressing")[0] == "False"


def test_fits_whose_adoption_hangs_take_no_whole_pass():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.fail(SILENT, lambda asked: (asked.method, asked.kind) == ("PATCH", FIT), 15.0)
        for number in range(5):
            it.world.fit(f"f{number}")
        it.world.patch(router={"tau": "0.3"})
        it.minutes(5)
        assert str(it.world.routing["tau"]) == "0.3"
        assert it.is_current()


def test_sets_that_cannot_be_owned_keep_no_status_back():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.fail(
            DENIED,
            lambda asked: (
                (asked.method, asked.kind) == ("PATCH", "ConfigMap")
                and asked.name != contract.routing_name("x")
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
        ("decode", {"spec": {"containers": [{"name": "engine", "startupProbe": "soon"}]}}),
        ("decode", {"metadata": {"labels": ["team=a"]}}),
        ("decode", {"metadata": "x"}),
        ("router", {"metadata": {"annotations": {"team": 1}}}),
        ("refit", {"metadata": {"labels": "team=a"}}),
        ("decode", {"spec": nested(300)}),
    ],
)
def test_a_template_that_is_none_is_told_and_nothing_else_waits(part, template):
    with simulated() as it:
        it.world.up(router={"placement": "Deployment"})
        it.simulation.pass_(30)
        asked = {"router": {"placement": "Deployment"}, "prefill": {"replicas": 2}}
        asked[part] = asked.get(part, {}) | {"podTemplate": template}
        it.world.patch(**asked)
        it.minutes(3)
        assert it.is_current()
        assert it.told("ConfigValid") == ("False", "InvalidPodTemplate")
        assert it.world.kube.get("Deployment", "x-prefill")["spec"]["replicas"] == 2


UNUSABLE = pytest.mark.parametrize(
    "asked",
    [
        {"rollout": {"revision": "x-prefill-1"}},
        {"rollout": {"revision": "x-decode-1"}},
        {"podTemplate": {"metadata": "x"}},
    ],
    ids=str,
)
"""What no decode engine can be made from."""


@contextmanager
def asked_of_decode(asked: Object) -> Iterator[tuple[Simulated, Object]]:
    """A deployment that is asked for other decode engines; beside it the template that it has."""
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        before = it.world.kube.get("StatefulSet", "x-decode")["spec"]["template"]
        it.world.patch(decode={"env": [{"name": "CHANGED", "value": "1"}], **asked})
        yield it, before


def test_the_other_role_goes_on_and_progressing_names_the_one_that_waits():
    waits = "pods of decode keep the template that they have until ConfigValid is True"
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        before = it.world.kube.get("StatefulSet", "x-decode")["spec"]["template"]
        it.world.patch(engine={"image": "other:2"}, decode={"podTemplate": {"metadata": "x"}})
        it.minutes(3)
        assert "other:2" in str(it.world.kube.get("Deployment", "x-prefill")["spec"]["template"])
        assert it.world.kube.get("StatefulSet", "x-decode")["spec"]["template"] == before
        found = it.world.kube.condition(KIND, "x", "Progressing")
        assert found["message"] == f"all other pods run the newest template; {waits}"
        assert it.told("Degraded") == ("True", "NoMatchingPrefill")
        it.world.patch(decode={"podTemplate": None})
        it.minutes(3)
        assert it.told("Degraded")[0] == "False"
        assert (
            it.world.kube.condition(KIND, "x", "Progressing")["message"] == "all pods run the newest template"
        )


@UNUSABLE
def test_a_role_whose_pods_cannot_be_made_as_asked_is_scaled_and_keeps_its_template(asked):
    with asked_of_decode(asked) as (it, before):
        it.world.kube.merge(SCALER, "x-decode", {"spec": {"replicas": 4}}, "scale")
        it.minutes(2)
        assert it.told("ConfigValid")[0] == it.told("Ready")[0] == "False"
        assert it.told("DecodeReady") == ("True", "AllReady")
        live = it.world.kube.get("StatefulSet", "x-decode")["spec"]
        assert (live["replicas"], live["template"]) == (4, before)


@UNUSABLE
def test_a_workload_that_is_deleted_while_its_pods_cannot_be_made_as_asked_comes_back_as_it_was(asked):
    with asked_of_decode(asked) as (it, before):
        it.minutes(1)
        it.world.kube.delete("StatefulSet", "x-decode")
        it.minutes(2)
        assert it.told("Ready")[0] == "False"
        assert it.told("Available")[0] == "True"
        assert it.world.kube.get("StatefulSet", "x-decode")["spec"]["template"] == before


@pytest.mark.parametrize(("kind", "role"), [("StatefulSet", "decode"), ("Deployment", "prefill")])
def test_a_role_whose_template_only_the_api_server_refuses_is_scaled_and_keeps_its_template(
    monkeypatch, kind, role
):
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        store, name = it.simulation.store, f"x-{role}"
        apply, before = store.apply, it.world.kube.get(kind, name)["spec"]["template"]

        def strict(manifest: Object, manager: str, subresource: str = "") -> Object:
            if manifest["kind"] == kind and "unheard" in manifest["spec"]["template"]["spec"]:
                raise Refused(422, ".spec.template.spec.unheard: field not declared in schema")
            return apply(manifest, manager, subresource)

        monkeypatch.setattr(store, "apply", strict)
        it.world.patch(**{role: {"podTemplate": {"spec": {"unheard": 1}}}})
        it.world.kube.merge(SCALER, name, {"spec": {"replicas": 4}}, "scale")
        it.minutes(2)
        assert it.told("Progressing") == ("False", "ChildRefused")
        live = it.world.kube.get(kind, name)
        assert (live["spec"]["replicas"], live["spec"]["template"]) == (4, before)
        it.minutes(2)
        version = "resourceVersion"
        assert it.world.kube.get(kind, name)["metadata"][version] == live["metadata"][version]
        it.world.patch(**{role: {"podTemplate": None}})
        it.minutes(2)
        assert it.told("Progressing") == ("True", "RolloutComplete")


def test_routers_beside_prefill_engines_stay_until_one_of_the_deployment_is_ready():
    refused = {"spec": {"containers": [{"name": contract.CONTAINER_ROUTER, "args": []}]}}
    with simulated() as it:
        it.world.up()
        it.world.patch(router={"placement": "Deployment", "podTemplate": refused}, prefill={"replicas": 2})
        it.minutes(3)
        assert it.told("ConfigValid") == ("False", "InvalidPodTemplate")
        assert it.told("Available")[0] == "True"
        assert it.world.kube.get("Deployment", "x-prefill")["status"]["readyReplicas"] == 2
        it.world.patch(router={"podTemplate": None})
        it.world.make_ready()
        found = it.world.kube.list("Pod", f"{contract.LABEL_ROUTER}=true")
        assert {pod["metadata"]["labels"][contract.LABEL_ROLE] for pod in found} == {contract.ROLE_ROUTER}


def test_a_failed_template_of_prefill_is_not_tried_again_when_routers_are_away_for_a_moment():
    broken = {"env": [{"name": "CHANGED", "value": NEVER_READY}], "rollout": {"progressDeadlineSeconds": 30}}
    away = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    with simulated() as it:
        it.world.up()
        it.minutes(1)
        it.world.patch(router={"placement": "Deployment"}, prefill=broken)
        it.minutes(5)
        assert it.told("Progressing") == ("False", "RolledBack")
        for pod in it.world.kube.list("Pod", f"{contract.LABEL_ROLE}={contract.ROLE_ROUTER}"):
            it.world.kube.strategic("Pod", pod["metadata"]["name"], away, "status")
        it.simulation.pass_(30)
        assert it.told("Progressing") == ("False", "RolledBack")


def test_prefill_engines_make_room_for_each_other_where_a_quota_is_full():
    with simulated() as it:
        it.world.up(prefill={"replicas": 2})
        it.minutes(1)
        prefill = f"{contract.LABEL_ROLE}=prefill"
        it.simulation.controllers.refuses = lambda _: len(it.world.kube.list("Pod", prefill)) >= 2
        it.simulation.controllers.refusal = (
            "pods are forbidden: exceeded quota: two, requested: pods=1, used: pods=4, limited: pods=4"
        )
        it.world.patch(prefill={"env": [{"name": "CHANGED", "value": "1"}]})
        it.simulation.pass_(20)
        it.simulation.controllers.step()
        it.simulation.pass_(20)
        assert it.told("PrefillReady") == ("False", "PodsRefused")
        it.minutes(6)
        assert it.told("Progressing") == ("True", "RolloutComplete")
        assert it.told("PrefillReady") == ("True", "AllReady")


@pytest.mark.parametrize(("kind", "role"), [("StatefulSet", "decode"), ("Deployment", "prefill")])
def test_engines_that_are_ready_for_a_moment_and_crash_stop_the_rollout_at_the_first(kind, role):
    bakes = {"replicas": 4, "rollout": {"minReadySeconds": 60}}
    with simulated() as it:
        it.world.up(**{role: bakes})
        it.minutes(3)
        assert it.told("Progressing") == ("True", "RolloutComplete")
        before = it.world.kube.get(kind, f"x-{role}")["spec"]["template"]
        it.world.patch(**{role: {"env": [{"name": "CHANGED", "value": CRASHES}]}})
        most = 0
        for _ in range(150):
            it.simulation.pass_(2)
            it.simulation.controllers.step()
            it.world.run_pods()
            pods = it.world.kube.list("Pod", f"{contract.LABEL_ROLE}={role}")
            new = [pod for pod in pods if CRASHES in str(pod["spec"])]
            most = max(most, len(new))
        assert most == 1, "engines that had the new template at one time"
        assert it.told("Progressing") == ("False", "RolledBack")
        assert it.told(f"{role.capitalize()}Ready") == ("True", "AllReady")
        assert it.world.kube.get(kind, f"x-{role}")["spec"]["template"] == before
        assert "RolloutRolledBack" in it.world.events()


@pytest.mark.parametrize(("kind", "role"), [("StatefulSet", "decode"), ("Deployment", "prefill")])
def test_a_rollout_whose_pods_are_refused_goes_back(kind, role):
    refused = {"env": [{"name": "CHANGED", "value": "1"}], "rollout": {"progressDeadlineSeconds": 300}}
    with simulated() as it:
        it.simulation.controllers.refuses = lambda template: any(
            each["name"] == "CHANGED"
            for container in template["spec"]["containers"]
            for each in container.get("env", ())
        )
        it.world.up()
        it.minutes(1)
        before = it.world.kube.get(kind, f"x-{role}")["spec"]["template"]
        it.world.patch(**{role: refused})
        it.minutes(4)
        assert it.told(f"{role.capitalize()}Ready") == ("False", "PodsRefused")
        assert it.told("Progressing") == ("True", "RolloutInProgress")
        it.minutes(5)
        assert it.told("Progressing") == ("False", "RolledBack")
        assert it.told(f"{role.capitalize()}Ready") == ("True", "AllReady")
        assert it.world.kube.get(kind, f"x-{role}")["spec"]["template"] == before
        it.world.patch(**{role: {"env": None}})
        it.minutes(2)
        assert it.told("Progressing") == ("True", "RolloutComplete")
        it.world.patch(**{role: refused})
        it.minutes(4)
        assert it.told("Progressing") == ("True", "RolloutInProgress"), (
            "what was refused before does not count"
        )


@pytest.mark.parametrize(("kind", "role"), [("StatefulSet", "decode"), ("Deployment", "prefill")])
def test_a_revision_that_is_deleted_while_its_role_is_rolled_back_to_it_comes_back(kind, role):
    broken = {"env": [{"name": "CHANGED", "value": NEVER_READY}], "rollout": {"progressDeadlineSeconds": 30}}
    with simulated() as it:
        it.world.up()
        it.minutes(1)
        it.world.patch(**{role: broken})
        it.minutes(5)
        assert it.told("Progressing") == ("False", "RolledBack")
        name = it.world.kube.get(kind, f"x-{role}")["metadata"]["annotations"][ANNOTATION_REVISION]
        before = it.world.kube.get("ControllerRevision", name)
        it.world.kube.delete("ControllerRevision", name)
        it.minutes(5)
        assert it.told("Progressing") == ("False", "RolledBack")
        assert it.world.kube.get(kind, f"x-{role}")["metadata"]["annotations"][ANNOTATION_REVISION] == name
        kept = it.world.kube.get("ControllerRevision", name)["data"]
        assert (kept["template"], kept["images"]) == (before["data"]["template"], before["data"]["images"])
        it.world.patch(**{role: {"env": None}})
        it.minutes(2)
        assert it.told("Progressing") == ("True", "RolloutComplete")


def _replicas(live: Object) -> Object:
    return {"spec": {"replicas": 5}}


def _label(live: Object) -> Object:
    return {"metadata": {"labels": {"app.kubernetes.io/part-of": "platform"}}}


def _found_by(live: Object) -> Object:
    return {"metadata": {"labels": {contract.LABEL_MANAGED_BY: "platform"}}}


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
        ("StatefulSet", "x-decode", _replicas, "scale", "spec.replicas"),
        ("Deployment", "x-prefill", _image, "", "spec.template.spec.containers[engine].image"),
        ("Service", "x", _label, "", "metadata.labels.app.kubernetes.io/part-of"),
        ("Service", "x", _found_by, "", f"metadata.labels.{contract.LABEL_MANAGED_BY}"),
        (SCALER, "x-decode", _found_by, "", f"metadata.labels.{contract.LABEL_MANAGED_BY}"),
    ],
    ids=[
        "an autoscaler on the child",
        "an image",
        "a label",
        "the label that it is found by",
        "that of a scaler",
    ],
)
def test_another_writer_that_does_not_give_in_is_named_and_answered_ever_more_rarely(
    kind, name, change, subresource, field
):
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        undone = 0
        for _ in range(45):
            live = it.world.kube.get(kind, name)
            if not _holds(live, change(live)):
                it.world.kube.merge(kind, name, change(live), subresource)
                undone += 1
            it.minutes(1)
        assert undone <= 1 + 3 + 5, "after 1, 2, 4, ... minutes"
        assert it.told("Progressing") == ("False", "ForeignConflict")
        events = [each for each in it.world.kube.list("Event") if each["reason"] == "ForeignConflict"]
        assert f"{kind} {name}: {field} (set by kubectl)" in events[0]["message"]
        assert "ForeignChangeUndone" in {each["reason"] for each in it.world.kube.list("Event")}


def test_another_writer_that_gave_in_and_comes_back_is_undone_again():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)

        def scaled(count: int) -> int:
            it.world.kube.merge("StatefulSet", "x-decode", {"spec": {"replicas": count}}, "scale")
            it.simulation.pass_(15)
            return it.world.kube.get("StatefulSet", "x-decode")["spec"]["replicas"]

        assert [scaled(5) for _ in range(4)] == [2, 2, 2, 5]
        assert it.told("Progressing") == ("False", "ForeignConflict")
        it.world.patch(decode={"replicas": 3})
        it.minutes(1)
        assert it.world.kube.get("StatefulSet", "x-decode")["spec"]["replicas"] == 3
        it.minutes(1)
        assert it.told("Progressing")[1] != "ForeignConflict"
        it.minutes(150)
        assert [scaled(5) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("kind", sorted(CHILDREN - {"ConfigMap"}))
def test_what_the_api_server_refuses_is_tried_ever_more_rarely(kind):
    asked = []
    with simulated() as it:
        it.operator.client.faults.append(asked.append)
        it.fail(DENIED, lambda found: found.kind == kind)
        it.world.deploy()
        it.minutes(30)
        writes = [each for each in asked if each.kind == kind and each.is_write]
        assert max(Counter(writes).values()) <= 2 * (6 + 5), "two objects can have no name yet"
        assert it.told("Progressing") == ("False", "ChildRefused")
        reasons = [each["reason"] for each in it.world.kube.list("Event")]
        assert 1 <= reasons.count("ChildRefused") <= 2
        it.operator.client.faults.clear()
        it.minutes(6)
        assert it.world.kube.list(kind)
        assert it.told("Progressing")[1] != "ChildRefused"


def test_a_clock_that_is_ahead_for_a_moment_rolls_nothing_back():
    with simulated() as it:
        it.world.up()
        it.simulation.pass_(30)
        it.world.patch(decode={"env": [{"name": "CHANGED", "value": "7"}]})
        for _ in range(4):
            it.simulation.controllers.step()
            _load(it)
            it.simulation.pass_(5)
        it.operator.ahead = timedelta(hours=1)
        it.simulation.pass_(40)
        it.operator.ahead = timedelta(0)
        it.minutes(15)
        assert it.told("Progressing") == ("True", "RolloutComplete")


def _load(it: Simulated) -> None:
    """Let new decode pods run on a node, and load weights."""
    for pod in it.world.kube.list("Pod", f"{contract.LABEL_ROLE}=decode"):
        names = {each["name"] for one in pod["spec"]["containers"] for each in one.get("env", ())}
        if "CHANGED" not in names or pod["spec"].get("nodeName"):
            continue
        at = clock.stamp(it.simulation.now())
        loads = [
            {"type": kind, "status": status, "lastTransitionTime": at}
            for kind, status in (("PodScheduled", "True"), ("Ready", "False"))
        ]
        name = pod["metadata"]["name"]
        it.world.kube.merge("Pod", name, {"spec": {"nodeName": "n1"}})
        it.world.kube.strategic("Pod", name, {"status": {"phase": "Running", "conditions": loads}}, "status")


def test_a_change_that_is_undone_within_the_minute_announces_no_gap():
    with simulated() as it:
        it.world.up(decode={"replicas": 1})
        it.simulation.pass_(30)
        before = it.world.kube.get("Pod", "x-decode-0")["metadata"]["uid"]
        it.world.patch(decode={"env": [{"name": "CHANGED", "value": "5"}]})
        it.simulation.pass_(20)
        it.simulation.controllers.step()
        assert "ends at" in it.world.kube.condition(KIND, "x", "Progressing")["message"]
        it.world.patch(decode={"env": []})
        it.simulation.pass_(10)
        assert "ends at" not in it.world.kube.condition(KIND, "x", "Progressing")["message"]
        it.minutes(3)
        assert it.world.kube.get("Pod", "x-decode-0")["metadata"]["uid"] == before


@pytest.fixture
def without_resync(monkeypatch):
    """Let nothing but a change wake the operator."""
    monkeypatch.setattr(process, "RESYNC_SECONDS", 3600.0)


def _look_a_moment_later(it: Simulated) -> None:
    for _ in range(3):
        it.simulation.controllers.step()
        it.simulation.pass_(5)


@pytest.mark.usefixtures("without_resync")
def test_a_scaler_that_is_made_anew_tells_autoscalers_what_to_count():
    with simulated() as it:
        it.world.up()
        it.minutes(2)
        it.world.kube.delete(SCALER, "x-decode")
        _look_a_moment_later(it)
        told = it.world.kube.get(SCALER, "x-decode").get("status") or {}
        assert told.get("replicas") == 2
        assert "role=decode" in told["selector"]


@pytest.mark.usefixtures("without_resync")
@pytest.mark.parametrize("seed", [1, 2])
def test_engines_that_lost_their_owner_are_told_of_once_they_are_adopted(seed):
    with simulated(seed) as it:
        it.world.up()
        it.minutes(2)
        it.world.kube.merge("StatefulSet", "x-decode", {"metadata": {"ownerReferences": None}})
        _look_a_moment_later(it)
        assert it.world.kube.get("StatefulSet", "x-decode")["metadata"]["ownerReferences"]
        assert it.told("Available") == ("True", "MinimumReplicasAvailable")
        assert it.told("Ready")[0] == "True"


def test_a_spec_value_that_this_release_does_not_know_is_reported_and_what_runs_stays():
    with simulated() as it:
        it.world.up()
        it.world.patch(update="Canary", decode={"replicas": 3})
        it.minutes(2)
        assert it.told("Ready") == ("Unknown", "SpecUnreadable")
        message = it.world.kube.condition(KIND, "x", "Ready")["message"]
        assert "spec.update: 'Canary'" in message
        assert it.is_current()
        assert it.world.events().count("SpecUnreadable") == 1
        assert it.world.status["decode"]["ready"] == 2
        it.world.patch(update="Manual")
        it.world.make_ready()
        assert it.world.status["decode"]["ready"] == 3


def test_what_another_release_serves_is_left_alone_even_where_this_one_cannot_read_it():
    """Else two releases of which one knows a newer spec write each other's status away for ever."""
    with simulated() as it:
        held = {"holderIdentity": "b/eldr", "leaseDurationSeconds": 15}
        it.world.kube.create("Lease", {"name": contract.SERVED_LEASE}, spec=held)
        it.world.kube.create(KIND, {"name": "x"}, spec=simulated_spec() | {"update": "Canary"})
        it.simulation.pass_(10)
        assert it.world.events() == ["ManagedElsewhere"]
        assert not it.world.status
        it.simulation.pass_(30)
        assert it.told("Ready") == ("Unknown", "SpecUnreadable"), "the other one has gone"


def test_pods_that_kubernetes_fails_again_and_again_are_named_with_their_count():
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    with simulated() as it:
        it.world.up()
        it.minutes(1)
        for _ in range(3):
            it.world.kube.strategic("Pod", "x-decode-1", {"status": rejected | {"conditions": []}}, "status")
            it.simulation.pass_(2)
            it.world.kube.delete("Pod", "x-decode-1")  # as its controller does
            it.simulation.controllers.step()
            it.simulation.pass_(2)
        condition = it.world.kube.condition(KIND, "x", "DecodeReady")
        assert condition["reason"] == "PodsFailed"
        assert "3 pods failed" in condition["message"]
        assert "UnexpectedAdmissionError: no healthy devices" in condition["message"]
        waits = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/4 nodes",
            "lastTransitionTime": clock.stamp(it.world.kube.now()),
        }
        it.world.kube.strategic("Pod", "x-decode-1", {"status": {"conditions": [waits]}}, "status")
        it.simulation.pass_(70)
        condition = it.world.kube.condition(KIND, "x", "DecodeReady")
        assert condition["reason"] == "InsufficientCapacity"
        assert "0/4 nodes" in condition["message"]
        assert "3 pods failed" in condition["message"], "what its predecessors had does not go with them"
        it.world.make_ready()


def test_a_pod_whose_node_is_lost_is_named_once_its_grace_period_is_over():
    with simulated() as it:
        it.world.up()
        it.minutes(1)
        ends = clock.stamp(it.simulation.now() + timedelta(seconds=30))
        lost = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": 30}
        it.world.kube.merge("Pod", "x-decode-1", {"metadata": lost})
        away = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
        it.world.kube.merge("Pod", "x-decode-1", away, "status")
        it.simulation.controllers.step()
        it.simulation.pass_(20)
        assert it.told("DecodeReady") == ("False", "PodsNotReady")
        it.simulation.pass_(20)
        assert it.told("DecodeReady") == ("False", "PodStuck")
        assert (
            "on node n is Terminating since" in it.world.kube.condition(KIND, "x", "DecodeReady")["message"]
        )


@pytest.mark.parametrize("policy", ["MarginalUnion", "JSQ"])
def test_available_follows_what_routers_report(policy):
    with simulated() as it:
        it.world.up(router={"policy": policy})
        it.minutes(1)
        (router,) = it.world.routers.values()
        router.problem = "pods: 401: Unauthorized; routing: 401: Unauthorized"
        it.simulation.pass_(20)
        assert it.told("Ready") == ("True", "AllReady")
        router.problem = None
        it.simulation.pass_(20)
        router.problem = "pods: 401: Unauthorized; routing: 401: Unauthorized"
        it.simulation.pass_(20)
        assert it.told("Ready") == ("True", "AllReady"), "each refusal counts by itself"
        it.simulation.pass_(28)
        assert it.told("Ready") == it.told("RouterReady") == ("False", "RouterUnauthorized")
        assert it.told("Available")[0] == "True"
        router.decode = [{"name": "x-decode-0", "healthy": False}]
        it.simulation.pass_(28)
        assert it.told("Available") == it.told("Ready") == ("False", "RouterUnauthorized")
        assert "RouterUnauthorized" in it.world.events()
        router.problem, router.decode = None, [{"name": "x-decode-0", "healthy": True}]
        it.simulation.pass_(28)
        assert it.told("Available") == ("True", "MinimumReplicasAvailable")
        assert it.told("Ready") == ("True", "AllReady")


def test_engines_that_are_ejected_for_a_moment_and_rights_that_are_new_change_no_condition():
    with simulated() as it:
        it.world.up(prefill={"replicas": 2})
        it.minutes(1)
        first, second = it.world.routers.values()
        for router in (first, second):
            router.decode = [{"name": "x-decode-0", "healthy": False}]
        it.simulation.pass_(5)
        second.decode = [{"name": "x-decode-0", "healthy": True}]
        it.simulation.pass_(15)
        assert it.told("Available")[0] == "True", "one of them still serves"
        assert "NoDecodeEngine" not in it.world.events()
        second.decode = first.decode
        it.simulation.pass_(20)
        assert it.told("Available") == ("False", "NoDecodeEngine")
        it.world.patch(prefill={"env": [{"name": "NEW", "value": "1"}]})
        it.simulation.pass_(5)
        known = {*it.world.routers}
        it.simulation.controllers.step()
        it.world.run_pods()
        (young,) = [router for name, router in it.world.routers.items() if name not in known]
        young.problem = "pods: 403: pods is forbidden"
        it.simulation.pass_(15)
        assert it.told("RouterReady")[1] != "RouterUnauthorized"
        it.simulation.pass_(30)
        assert it.told("RouterReady") == ("False", "RouterUnauthorized")

"""Rollouts on a node that is full, and rollouts that wait, on a real API server with its scheduler."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from eldr import contract
from eldr_operator import clock
from eldr_operator.workloads import gaps
from tests.operator.world import KIND, World
from tests.support.kube import Object, Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

DEVICE = "example.com/gpu"
_numbers = itertools.count()
QUICK = "from eldr_operator.workloads import rollout\nrollout.PATIENCE_SECONDS = 3.0"
NEW = [{"name": "NEW", "value": "1"}]
BROKEN = "--kv-key=broken"
"""An argument with which no engine gets ready here."""


class FullWorld(World):
    """A deployment whose pods take all devices of the only node; plays the kubelet of that node."""

    devices = 4

    def open(self) -> None:
        # its own name and taint: what ran on the node of an earlier test goes in its own time
        self._node_name = f"full-{next(_numbers)}"
        self._taint = f"eldr.dev/{self._node_name}"
        amounts = {"cpu": "64", "memory": "64Gi", "pods": "64", DEVICE: str(self.devices)}
        taint = {"key": self._taint, "effect": "NoSchedule"}
        node = {"metadata": {"name": self._node_name}, "spec": {"taints": [taint]}}
        self.kube.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
        self._node("/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        self._beat()

    def grow(self, devices: int) -> None:
        """Give the node more devices."""
        amounts = {DEVICE: str(devices)}
        self._node("/status", {"status": {"capacity": amounts, "allocatable": amounts}})

    def allow(self, devices: int) -> None:
        """Let pods of the namespace take no more devices."""
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "devices"}}
        url = f"/api/v1/namespaces/{self.kube.namespace}/resourcequotas"
        self.kube.request("POST", url, quota | {"spec": {"hard": {f"requests.{DEVICE}": str(devices)}}})

    def close(self) -> None:
        super().close()
        self.kube.request("DELETE", f"/api/v1/nodes/{self._node_name}")

    def deploy(self, **spec: Any) -> Object:
        tolerated = {"spec": {"tolerations": [{"key": self._taint, "operator": "Exists"}]}}
        roles: Object = {"gpus": 1, "replicas": 2, "podTemplate": tolerated}
        made = {"accelerator": {"resourceName": DEVICE}, "prefill": {**roles}, "decode": {**roles}}
        for key, value in spec.items():
            made[key] = {**made.get(key, {}), **value}
        return super().deploy(**made)

    def _beat(self) -> None:
        """Tell that the node is there: after 40 s of silence nothing is scheduled to it."""
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "lastHeartbeatTime": clock.stamp(clock.utc_now()),
        }
        self._node("/status", {"status": {"conditions": [ready]}})

    def run_pods(self) -> None:
        self._beat()
        self._end_pods()
        for pod in self.lasting():
            works = BROKEN not in pod["spec"]["containers"][0]["args"]
            if works and pod["status"].get("phase") != "Running" and pod["spec"].get("nodeName"):
                self._run(pod)

    def keys(self) -> set[str]:
        return {pod["metadata"]["labels"][contract.LABEL_KV] for pod in self.lasting()}

    def rollout(self, *arguments: str) -> str:
        done = self.eldr("rollout", *arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def pods(self, role: str = "") -> list[Object]:
        wanted = f"{contract.LABEL_ROLE}={role}" if role else contract.LABEL_ROLE
        return self.kube.list("Pod", f"{contract.LABEL_DEPLOYMENT}={self.name},{wanted}")

    def lasting(self, role: str = "") -> list[Object]:
        """Return the pods that are not being deleted: a Deployment is complete while its old pods still end."""
        return [pod for pod in self.pods(role) if "deletionTimestamp" not in pod["metadata"]]

    def told(self, type_: str, field: str = "message") -> str:
        return self.kube.condition(KIND, self.name, type_).get(field, "")

    def with_new(self, role: str) -> tuple[int, int]:
        """Return how many pods of a role are ready, and how many of those have the new template."""
        found = [pod for pod in self.lasting(role) if pod["status"].get("phase") == "Running"]
        return len(found), sum(
            any(NEW[0] in each.get("env", []) for each in pod["spec"]["containers"]) for pod in found
        )

    def _node(self, subresource: str, body: Object) -> None:
        url = f"/api/v1/nodes/{self._node_name}{subresource}"
        self.kube.request("PATCH", url, body, "application/strategic-merge-patch+json")

    def _end_pods(self) -> None:
        for pod in (pod for pod in self.pods() if "deletionTimestamp" in pod["metadata"]):
            name = pod["metadata"]["name"]
            url = f"/api/v1/namespaces/{self.kube.namespace}/pods/{name}"
            try:
                self.kube.request("DELETE", url, {"gracePeriodSeconds": 0})
            except Refused as error:
                if error.status != 404:
                    raise


@pytest.fixture(scope="module")
def impatient(operator):
    operator.stop()
    operator.start(release=QUICK)
    yield
    operator.stop()
    operator.start()


@pytest.fixture
def full(impatient, kube):
    world = FullWorld(kube)
    world.open()
    yield world
    world.close()


def strategy(world):
    return world.workload("prefill")["spec"]["strategy"]["rollingUpdate"]


def test_pods_make_room_on_a_full_node_and_come_first_where_there_is_room(full):
    full.up()
    assert strategy(full) == {"maxSurge": 1, "maxUnavailable": 0}
    fewest = {"prefill": 2, "decode": 2}

    def rolled(*roles):
        full.run_pods()
        counts = {role: full.with_new(role) for role in ("prefill", "decode")}
        for role, (ready, _) in counts.items():
            fewest[role] = min(fewest[role], ready)
        return all(counts[role] == (2, 2) for role in roles)

    full.patch(prefill={"env": NEW})
    text = "each pod ends before its successor starts"
    full.until(lambda: text in full.told("Progressing"), "pods to make room")
    assert strategy(full) == {"maxSurge": 0, "maxUnavailable": 1}
    wait_for(lambda: rolled("prefill"), "prefill rolled", 90, lambda: (strategy(full), full.status))
    assert fewest["prefill"] >= 1
    assert fewest["decode"] == 2
    wait_for(lambda: strategy(full)["maxSurge"] == 1, "room looked for again", 30)
    full.patch(decode={"env": NEW})
    full.until(lambda: rolled("decode"), "decode rolled", 90)
    assert fewest["decode"] >= 1
    full.make_ready()


def test_decode_engines_that_a_quota_refuses_go_back(full):
    full.grow(8)
    full.allow(4)
    full.up()
    full.patch(decode={"gpus": 2, "rollout": {"progressDeadlineSeconds": 5}})

    def is_back():
        full.run_pods()
        return (full.told("Progressing", "reason"), full.with_new("decode")[0]) == ("RolledBack", 2)

    full.until(is_back, "the engines back", 90)


def test_a_new_pod_comes_first_where_there_is_room_and_the_end_of_an_only_pod_is_announced(full):
    full.up(decode={"replicas": 1})
    full.patch(prefill={"env": NEW})

    def rolled():
        full.run_pods()
        ready, new = full.with_new("prefill")
        assert ready >= 2
        return (ready, new) == (2, 2)

    full.until(rolled, "prefill rolled", 90)
    full.make_ready()
    version = full.kube.get(KIND, "x")["metadata"]["resourceVersion"]
    full.patch(decode={"env": NEW})
    full.until(lambda: full.run_pods() or full.with_new("decode") == (1, 1), "decode rolled")
    url = f"/apis/{contract.API_VERSION}/namespaces/{full.kube.namespace}/{contract.DEPLOYMENTS}"
    seen = [
        condition["message"]
        for event in full.kube.watch(url, 2, resourceVersion=version)
        for condition in event["object"]["status"]["conditions"]
        if condition["type"] == "Progressing"
    ]
    assert any("decode: " in message and "its only pod ends at" in message for message in seen), seen
    full.make_ready()
    assert gaps.ANNOTATION_GAP not in full.workload("decode")["metadata"]["annotations"]


def test_a_rollout_waits_while_it_is_paused_or_kept_from_ordinals(full):
    full.up(prefill={"rollout": {"pause": "Enabled"}})  # there are no pods yet: they start
    full.patch(prefill={"env": NEW}, decode={"env": NEW, "rollout": {"pause": "Enabled"}})
    paused = full.condition("Progressing", status="Unknown", reason="RolloutPaused")
    assert "prefill: " in paused["message"]
    full.condition("Ready", status="False", reason="RolloutPaused")
    full.patch(decode={"rollout": {"pause": "Disabled", "partition": 1}})

    def first():
        full.run_pods()
        return full.with_new("decode") == (2, 1)

    full.until(first, "the highest ordinal rolled")
    full.condition("DecodeReady", status="True")
    assert full.with_new("prefill") == (2, 0)
    full.patch(prefill={"rollout": {"pause": "Disabled"}}, decode={"rollout": {"partition": 0}})
    full.make_ready()
    assert (full.with_new("prefill"), full.with_new("decode")) == ((2, 2), (2, 2))


def test_engines_that_do_not_get_ready_go_back_by_themselves_and_by_hand(full):
    full.up()
    before = full.keys()
    deadline = {"rollout": {"progressDeadlineSeconds": 3}}
    full.patch(engine={"args": [BROKEN]}, prefill=deadline, decode=deadline)

    def is_back():
        full.run_pods()
        full.condition("Available", status="True")
        told = full.told("Progressing", "reason") == "RolledBack"
        roles = full.status["prefill"], full.status["decode"]
        return told and full.keys() == before and all(role["ready"] == 2 for role in roles)

    full.until(is_back, "both roles to go back", 120)
    full.condition("Ready", status="False", reason="RolledBack")
    assert "no pod became available with revision x-" in full.told("Progressing")
    assert "RolloutRolledBack" in full.events()
    good = {role: full.status[role]["revision"] for role in ("prefill", "decode")}
    shown = full.rollout("status", "x")
    assert all(re.search(rf"^{role} +2/2 +{name} ", shown, re.MULTILINE) for role, name in good.items()), (
        shown
    )

    patient = {"rollout": {"progressDeadlineSeconds": 600}}  # however slow this machine is
    full.patch(engine={"args": ["--kv-key=fixed"]}, prefill=patient, decode=patient)
    full.make_ready()
    fixed = full.keys()
    assert len(fixed) == 1
    assert fixed != before
    full.rollout("undo", "x")
    full.make_ready()
    assert {role: full.status[role]["revision"] for role in good} == good
    assert full.keys() == before
    full.rollout("pause", "x")
    full.rollout("resume", "x")
    full.make_ready()
    assert full.keys() == fixed
    full.patch(decode={"rollout": {"revision": "no-such"}})
    told = full.condition("ConfigValid", status="False", reason="ChildRefused")
    assert "decode.rollout.revision no-such is not kept; there are x-decode-" in told["message"]
    assert full.keys() == fixed

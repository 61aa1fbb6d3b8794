"""`eldr doctor` on a real API server: several faults at once are found, and of a deployment that is well nothing is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from eldr import contract
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

NODE = "doctors"


def run(world, *, kubeconfig=None):
    done = world.eldr("doctor", world.name, "--json", kubeconfig=kubeconfig)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(done.stdout)


def problems(told):
    return {(one["check"], one["about"]): one["problem"] for one in told["problems"]}


@pytest.fixture
def node(world) -> Iterator[None]:
    """A node with two accelerators, which no kubelet runs."""
    nodes = "/api/v1/nodes"
    world.kube.request(
        "POST",
        nodes,
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "spec": {"unschedulable": False}},
    )
    ready = [{"type": "Ready", "status": "True"}]
    status = {
        "status": {
            "conditions": ready,
            "allocatable": {"cpu": "8", "memory": "32Gi", "amd.com/gpu": "2", "pods": "110"},
        }
    }
    world.kube.request("PATCH", f"{nodes}/{NODE}/status", status, "application/merge-patch+json")
    yield
    world.kube.request("DELETE", f"{nodes}/{NODE}")


def test_several_faults_are_found_at_once(world, node):
    create = world.kube.create
    create("Secret", {"name": "hub"}, stringData={"api-key": "hidden"})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    ns = world.kube.namespace
    world.kube.request("POST", f"/api/v1/namespaces/{ns}/resourcequotas", quota)
    counted = f"/api/v1/namespaces/{ns}/resourcequotas/small"
    wait_for(lambda: world.kube.request("GET", counted).get("status", {}).get("used"), "a quota in force")

    def variable(name: str, secret: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "token"}}}

    world.deploy(
        engine={"env": [variable("HF_TOKEN", "hub"), variable("OTHER", "nowhere")]},
        prefill={"gpus": 0},
        decode={"gpus": 4, "replicas": 3},
    )
    world.kube.merge(contract.KIND_DEPLOYMENT, world.name, {"spec": {"networkPolicy": "Disabled"}})
    deny = {"podSelector": {}, "policyTypes": ["Ingress"]}
    create("NetworkPolicy", {"name": "deny"}, spec=deny)
    pod = world.kube.until(lambda: _pod(world, "prefill"), "a prefill pod")
    cannot = {"reason": "ErrImagePull", "message": "manifest unknown"}
    image = pod["spec"]["containers"][0]["image"]
    status = {"name": "engine", "image": image, "imageID": "", "restartCount": 0, "ready": False}
    world.kube.strategic(
        "Pod",
        pod["metadata"]["name"],
        {"status": {"containerStatuses": [status | {"state": {"waiting": cannot}}]}},
        "status",
    )
    world.condition("Ready", status="False", reason="ImagePull")
    world.condition("DecodeReady", status="False", reason="PodsRefused")

    code, told = run(world)
    assert code == 1
    found = problems(told)
    assert "manifest unknown" in found["images", f"image {image}"]
    assert "a pod of decode asks for 4, the largest node offers 2" in json.dumps(told)
    assert "2 pods" in found["quota", "ResourceQuota small"]
    assert "it has no key token" in found["references", "Secret hub"]
    assert "it does not exist" in found["references", "Secret nowhere"]
    assert ("network", "NetworkPolicy deny") in found
    assert "hidden" not in json.dumps(told)
    assert not {check for check, _ in found} & {"conditions", "routers"}, "their causes are found"


def _pod(world, role):
    return next(iter(world.kube.list("Pod", f"{contract.LABEL_ROLE}={role}")), None)


def test_without_rights_checks_are_skipped_and_without_the_deployment_it_cannot_look(world, tmp_path):
    world.up()
    world.kube.create("ServiceAccount", {"name": "guest"})
    kubeconfig = world.kube.cluster.kubeconfig_of(world.kube.account_token("guest"), tmp_path / "kubeconfig")
    done = world.eldr("doctor", world.name, kubeconfig=kubeconfig)
    assert done.exit_code == 2
    assert "Forbidden: " in done.output

    rules = [{"apiGroups": [contract.GROUP], "resources": [contract.DEPLOYMENTS], "verbs": ["get"]}]
    world.kube.create("Role", {"name": "guest"}, rules=rules)
    world.kube.create(
        "RoleBinding",
        {"name": "guest"},
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "guest"},
        subjects=[{"kind": "ServiceAccount", "name": "guest", "namespace": world.kube.namespace}],
    )

    def allowed() -> bool:
        try:
            with world.kube.as_account("guest") as guest:
                return bool(guest.get(contract.KIND_DEPLOYMENT, world.name))
        except Refused:
            return False

    wait_for(allowed, "the right to get the deployment", 30)
    code, told = run(world, kubeconfig=kubeconfig)
    assert (code, told["problems"]) == (0, [])
    skipped = {one["check"]: one["skipped"] for one in told["checks"]}
    assert skipped["images"] == ["may not list pods"]
    assert skipped["quota"] == ["may not list resourcequotas", "may not list limitranges"]
    assert skipped["conditions"] == ["may not get leases"]

"""A child that cannot be written is told, and keeps nothing else from being done."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eldr import contract
from tests.operator.world import KIND, World
from tests.support.kube import Kube, Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube

_HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def broken_webhook(kube: Kube) -> Iterator[None]:
    """Have an admission webhook that nobody answers decide about Jobs in the test's namespace."""
    name = f"broken-{kube.namespace}"
    rule = {"apiGroups": ["batch"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["jobs"]}
    hook = {
        "name": "broken.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/hook"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }
    kube.request("POST", _HOOKS, body)
    try:
        wait_for(lambda: _is_refused(kube), "the webhook in effect", 30)
        yield
    finally:
        kube.request("DELETE", f"{_HOOKS}/{name}")


def _is_refused(kube: Kube) -> bool:
    """Tell whether the webhook is asked: the API server takes a moment to know of it."""
    pod = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    try:
        kube.create("Job", {"name": "probe"}, spec={"template": {"spec": pod}})
    except Refused as error:
        return error.status >= 500
    kube.delete("Job", "probe")
    return False


def test_a_job_whose_webhook_is_down_waits_for_it(world: World):
    world.up()
    with broken_webhook(world.kube):
        world.fit("one")
        condition = world.until_fit("one", status="Unknown", reason="JobUnavailable")
        assert "failed calling webhook" in condition["message"]
        world.patch(decode={"replicas": 3})
        world.until_current()
    world.report("one")
    world.until_fit("one", status="True")


def test_a_deployment_made_anew_has_its_secret_at_once(world: World):
    world.up()
    name = contract.admin_secret_name("x")
    first = world.kube.get("Secret", name)["metadata"]["uid"]
    world.kube.delete(KIND, "x")
    for kind in ("Secret", "Deployment", "StatefulSet"):
        for found in world.kube.list(kind):
            with contextlib.suppress(Refused):  # the collector was faster
                world.kube.delete(kind, found["metadata"]["name"])
    wait_for(lambda: world.kube.list("StatefulSet") == [], "nothing left")
    world.deploy()
    found = world.until(lambda: world.kube.find("Secret", name), "its Secret", 15)
    assert found["metadata"]["uid"] != first


def test_a_deleted_secret_is_created_again_once_a_pod_needs_it(world: World):
    world.up()
    name = contract.admin_secret_name("x")
    first = world.kube.get("Secret", name)["metadata"]["uid"]
    world.kube.delete("Secret", name)
    waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
    container = {"name": "engine", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [container | {"state": {"waiting": waiting}}]}
    world.kube.strategic("Pod", "x-decode-0", {"status": status}, "status")
    found = world.until(lambda: world.kube.find("Secret", name), "its Secret")
    assert found["metadata"]["uid"] != first

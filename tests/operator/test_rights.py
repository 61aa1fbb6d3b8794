"""Every program may do what it must, and nothing else."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from eldr import contract
from eldr_operator.kube.api import path
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube


def may(client, verb, resource, name="", group="", subresource="") -> bool:
    attributes = {
        "namespace": client.namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "name": name,
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return client.request("POST", url, review)["status"]["allowed"]


@pytest.fixture
def accounts(world):
    world.up()
    world.serve("one")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(world.kube.as_account(f"x-{name}"))
            for name in ("router", "fit", "engine")
        }


def test_router_reads_its_routing_table_and_sets_and_nothing_else(world, accounts):
    router = accounts["router"]
    shard = world.routing["active"]["shards"][0]["name"]
    assert router.get("ConfigMap", contract.routing_name("x"))["data"][contract.ROUTING_KEY]
    assert router.get("ConfigMap", shard)["binaryData"]
    url, name = path("ConfigMap", world.kube.namespace), contract.routing_name("x")
    # the operator may write it meanwhile
    first, *_ = router.watch(url, 1, fieldSelector=f"metadata.name={name}")
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", name)
    assert router.list("Pod", f"{contract.LABEL_DEPLOYMENT}=x")
    world.kube.create("ConfigMap", {"name": "other"}, data={})
    for refused in (
        lambda: router.get("ConfigMap", "other"),
        lambda: router.get("ConfigMap", contract.report_name("one")),
        lambda: router.list("ConfigMap"),
        lambda: router.list("Secret"),
        lambda: router.get("Secret", contract.admin_secret_name("x")),
        lambda: router.merge("ConfigMap", contract.routing_name("x"), {"data": {}}),
        lambda: router.delete("Pod", "x-decode-0"),
        lambda: router.get(contract.KIND_DEPLOYMENT, "x"),
    ):
        with pytest.raises(Refused) as refusal:
            refused()
        assert refusal.value.status == 403


def test_router_may_read_a_set_only_as_long_as_it_is_in_use(world, accounts):
    first = world.routing["active"]["shards"][0]["name"]
    for name in ("two", "three"):
        world.serve(name)
    wait_for(lambda: not may(accounts["router"], "get", "configmaps", first), "right withdrawn")
    for name in ("two", "three"):
        shards = world.kube.list("ConfigMap", f"{contract.LABEL_FIT}={name}")
        (shard,) = (found["metadata"]["name"] for found in shards if "binaryData" in found)
        assert may(accounts["router"], "get", "configmaps", shard)


def test_fit_and_engine(accounts):
    fit, engine = accounts["fit"], accounts["engine"]
    for verb, resource in (("list", "pods"), ("get", "configmaps"), ("create", "configmaps")):
        assert may(fit, verb, resource), (verb, resource)
    for verb, resource in (
        *(("delete", "configmaps"), ("patch", "configmaps"), ("get", "secrets"), ("create", "pods")),
        ("delete", "pods"),
    ):
        assert not may(fit, verb, resource), (verb, resource)
    for verb in ("get", "list", "create"):
        for resource in ("pods", "configmaps", "secrets"):
            assert not may(engine, verb, resource), (verb, resource)


def test_engine_containers_get_no_token(world, accounts):
    for kind, name in (("Deployment", "x-prefill"), ("StatefulSet", "x-decode")):
        spec = world.kube.get(kind, name)["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        (engine,) = spec["containers"]
        mounted = {mount["name"] for mount in engine["volumeMounts"]}
        projected = {volume["name"] for volume in spec["volumes"] if "projected" in volume}
        assert not mounted & projected


def test_pods_pass_the_restricted_standard(world, accounts):
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    warned = world.kube.cluster.kubectl(
        "label",
        "--dry-run=server",
        "namespace",
        world.kube.namespace,
        *(f"{k}={v}" for k, v in labels.items()),
    )
    assert "violate" not in warned
    world.kube.cluster.kubectl(
        "label", "namespace", world.kube.namespace, *(f"{k}={v}" for k, v in labels.items())
    )
    before = {pod["metadata"]["uid"] for pod in world.kube.list("Pod")}
    for pod in world.kube.list("Pod", contract.LABEL_ROLE):
        world.kube.delete("Pod", pod["metadata"]["name"])
    world.make_ready()
    roles = [
        pod["metadata"]["labels"][contract.LABEL_ROLE] for pod in world.kube.list("Pod", contract.LABEL_ROLE)
    ]
    assert sorted(roles) == ["decode", "decode", "prefill"]
    assert not before & {pod["metadata"]["uid"] for pod in world.kube.list("Pod", contract.LABEL_ROLE)}

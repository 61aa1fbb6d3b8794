"""``podTemplate`` as users write it: with ``kubectl apply``, which keeps no null within lists."""

from __future__ import annotations

import pytest
import yaml

from tests.operator.world import KIND
from tests.support.kube import Refused
from tests.support.processes import wait_for

pytestmark = pytest.mark.kube


def apply(world, *options, **pod):
    """Apply a deployment of vLLM engines whose decode pods are patched so."""
    spec = {"model": {"uri": "org/model"}, "decode": {"podTemplate": {"spec": pod}} if pod else {}}
    manifest = {"apiVersion": "eldr.dev/v1alpha1", "kind": KIND, "metadata": {"name": "x"}, "spec": spec}
    world.kube.kubectl("apply", *options, "-f", "-", stdin=yaml.safe_dump(manifest))


def decode_pod(world):
    found = world.kube.find("StatefulSet", "x-decode")
    return found["spec"]["template"]["spec"] if found else {}


def volume(world, name):
    return next((each for each in decode_pod(world).get("volumes", ()) if each["name"] == name), None)


def until(world, holds, what):
    wait_for(holds, what, 60, lambda: (world.status.get("conditions"), decode_pod(world)))
    world.condition("ConfigValid", status="True")


@pytest.mark.parametrize("options", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_a_claim_takes_the_place_of_the_cache_and_goes_again(world, options):
    apply(world, *options)
    until(world, lambda: volume(world, "cache") == {"name": "cache", "emptyDir": {}}, "the cache")
    claim = {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
    apply(world, *options, volumes=[claim])
    until(world, lambda: volume(world, "cache") == claim, "the claim")
    apply(world, *options)
    until(world, lambda: volume(world, "cache") == {"name": "cache", "emptyDir": {}}, "the cache again")


def test_variables_probes_and_items_are_replaced_and_removed(world):
    apply(world)
    until(world, lambda: volume(world, "cache"), "engines")
    probe = decode_pod(world)["containers"][0]["livenessProbe"]
    secret = {"secretKeyRef": {"name": "keys", "key": "home"}}
    engine = {
        "name": "engine",
        "env": [{"name": "HOME", "valueFrom": secret}, {"name": "TRITON_CACHE_DIR", "$patch": "delete"}],
        "livenessProbe": {"exec": {"command": ["true"]}},
        "startupProbe": {"$patch": "delete"},
    }
    apply(world, containers=[engine])

    def is_patched() -> bool:
        made = decode_pod(world)["containers"][0]
        variables = {each["name"]: each for each in made["env"]}
        return (
            variables["HOME"] == {"name": "HOME", "valueFrom": secret}
            and "TRITON_CACHE_DIR" not in variables
            and "startupProbe" not in made
            and made["livenessProbe"]
            == {key: value for key, value in probe.items() if key != "httpGet"}
            | {"exec": {"command": ["true"]}}
        )

    until(world, is_patched, "the patched engine")
    apply(world)
    until(world, lambda: decode_pod(world)["containers"][0]["livenessProbe"] == probe, "what it was")


def test_what_would_take_the_routers_arguments_leaves_prefill_as_it_is(world):
    world.up()
    before = world.workload("prefill")["metadata"]["generation"]
    world.patch(
        prefill={"podTemplate": {"spec": {"initContainers": [{"name": "router", "args": ["router"]}]}}}
    )
    condition = world.condition("ConfigValid", status="False", reason="InvalidPodTemplate")
    assert "spec.prefill.podTemplate.spec.initContainers[0].args" in condition["message"]
    world.patch(prefill={"podTemplate": None}, router={"args": ["--port=1"]}, decode={"replicas": 3})
    condition = world.condition("ConfigValid", status="False", reason="InvalidArgument")
    assert condition["message"].startswith("spec.router.args[0]: '--port=1': remove it: ")
    wait_for(
        lambda: world.workload("decode")["spec"]["replicas"] == 3,
        "the other role to go on",
    )
    assert world.workload("prefill")["metadata"]["generation"] == before
    world.patch(router={"args": None})
    world.condition("ConfigValid", status="True")


def test_a_quantity_that_is_none_is_a_fault_of_the_resource_not_of_the_api_server(world):
    apply(world, containers=[{"name": "engine", "resources": {"limits": {"cpu": "many"}}}])
    assert "quantities must match" in world.condition("ConfigValid", reason="ChildRefused")["message"]


def test_routers_and_fits_are_scheduled_as_written(world):
    patch = {"spec": {"nodeSelector": {"pool": "cpu"}, "tolerations": [{"key": "a", "operator": "Exists"}]}}
    world.deploy(router={"placement": "Deployment", "podTemplate": patch}, refit={"podTemplate": patch})
    world.fit("one")
    for kind, name in (("Deployment", "x-router"), ("Job", "one")):
        found = wait_for(lambda kind=kind, name=name: world.kube.find(kind, name), f"{kind} {name}")
        assert found["spec"]["template"]["spec"].items() >= patch["spec"].items()
    world.condition("ConfigValid", status="True")
    with pytest.raises(Refused, match=r"router\.podTemplate needs"):
        world.patch(router={"placement": "Sidecar"})

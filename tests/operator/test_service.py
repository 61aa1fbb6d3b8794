"""The Service of clients on a real API server: how it is exposed, and what others decide about it."""

from __future__ import annotations

import pytest

from eldr import contract
from tests.operator.world import KIND, World, simulated
from tests.support.kube import Kube, Refused

pytestmark = pytest.mark.kube


def pods(world: World) -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in world.kube.list("Pod", f"{contract.LABEL_DEPLOYMENT}=x,{contract.LABEL_ROLE}")
    }


def test_another_type_is_applied_and_rolls_no_pod(world: World):
    world.up()
    before, templates = pods(world), generations(world)
    address = world.kube.get("Service", "x")["spec"]["clusterIP"]
    world.patch(service={"type": "LoadBalancer", "annotations": {"example.com/a": "1"}})
    service = until(world, lambda live: live["spec"]["type"] == "LoadBalancer")
    assert service["metadata"]["annotations"] == {"example.com/a": "1"}
    (port,) = service["spec"]["ports"]
    assert port["nodePort"]
    assert service["spec"]["clusterIP"] == address
    world.patch(service=None)
    service = until(world, lambda live: live["spec"]["type"] == "ClusterIP")
    assert "nodePort" not in service["spec"]["ports"][0]
    assert "annotations" not in service["metadata"]
    world.condition("Ready", status="True")
    assert (pods(world), generations(world)) == (before, templates)


def generations(world: World) -> list[int]:
    found = [world.kube.get(*each) for each in (("Deployment", "x-prefill"), ("StatefulSet", "x-decode"))]
    return [each["metadata"]["generation"] for each in found]


def until(world: World, holds):
    def found():
        live = world.kube.get("Service", "x")
        return live if holds(live) else None

    return world.until(found, "the Service as the spec says")


def test_what_others_decide_stays_and_what_is_ours_comes_back(world: World):
    world.up(service={"type": "NodePort", "annotations": {"example.com/a": "1"}})
    (chosen,) = world.kube.get("Service", "x")["spec"]["ports"]
    port = chosen["nodePort"] + 1 if chosen["nodePort"] < 32767 else chosen["nodePort"] - 1
    world.kube.strategic("Service", "x", {"spec": {"ports": [{"port": 80, "nodePort": port}]}})
    others = {"example.com/a": "theirs", "example.com/b": "theirs"}
    world.kube.strategic("Service", "x", {"metadata": {"annotations": others}})
    service = until(world, lambda live: live["metadata"]["annotations"]["example.com/a"] == "1")
    assert service["metadata"]["annotations"] == {"example.com/a": "1", "example.com/b": "theirs"}
    assert service["spec"]["ports"][0]["nodePort"] == port


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"type": "ExternalName"}, "spec.service.type"),
        ({"loadBalancerClass": "a"}, "service.loadBalancerClass needs service.type LoadBalancer; set it, or"),
        ({"annotations": {"a b": "1"}}, "service.annotations need names such as example.com/internal"),
        ({"annotations": {"eldr.dev/revision": "1"}}, "service.annotations of eldr.dev/ are the operator's own"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unattended")
def test_refused(kube: Kube, service, message):
    with pytest.raises(Refused) as refusal:
        kube.create(KIND, {"name": "x"}, spec=simulated(service=service))
    assert message in str(refusal.value)


@pytest.mark.usefixtures("unattended")
def test_the_class_of_a_load_balancer_stays_while_there_is_one(kube: Kube):
    asked = {"type": "LoadBalancer", "loadBalancerClass": "example.com/a"}
    kube.create(KIND, {"name": "x"}, spec=simulated(service=asked))
    with pytest.raises(
        Refused, match=r"service\.loadBalancerClass cannot change while the Service has a load"
    ):
        kube.merge(KIND, "x", {"spec": {"service": {"loadBalancerClass": "example.com/b"}}})
    kube.merge(KIND, "x", {"spec": {"service": {"type": "ClusterIP", "loadBalancerClass": None}}})
    kube.merge(KIND, "x", {"spec": {"service": asked | {"loadBalancerClass": "example.com/b"}}})

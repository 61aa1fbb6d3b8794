"""The engine vLLM against a real API server: defaults, refusals, and what users are told."""

from __future__ import annotations

import pytest

from eldr_operator.workloads import images
from tests.operator.world import KIND, simulated
from tests.support.kube import Refused

pytestmark = pytest.mark.kube


def test_vllm_is_the_default(world):
    world.kube.create(KIND, {"name": "x"}, spec={"model": {"uri": "org/model"}})
    world.make_ready()
    made = world.kube.get(KIND, "x")["spec"]["engine"]
    assert (made["type"], made["leaseSeconds"]) == ("vLLM", 300)
    spec = world.template("decode")["spec"]
    assert spec["containers"][0]["image"] == images.VLLM
    assert spec["containers"][0]["args"][:2] == ["serve", "org/model"]
    assert [each["name"] for each in spec["initContainers"]] == ["eldr-plugin"]


def test_simulators_become_vllm_and_back_without_leftovers(world):
    world.up()
    world.patch(engine={"type": "vLLM"})
    world.make_ready()
    world.patch(engine={"type": "Simulator"})
    world.make_ready()
    template = world.template("decode")["spec"]
    assert "initContainers" not in template
    assert [volume["name"] for volume in template["volumes"]] == ["tmp"]
    assert template["securityContext"]["runAsNonRoot"] is True


def test_the_default_image_is_for_the_accelerator(kube, world):
    with pytest.raises(Refused, match=r"engine\.image must be set where accelerator\.resourceName is not"):
        spec = simulated(engine={"type": "vLLM"}, accelerator={"resourceName": "gpu.intel.com/xe"})
        kube.create(KIND, {"name": "x"}, spec=spec)
    world.up(engine={"type": "vLLM"}, accelerator={"resourceName": "nvidia.com/gpu"})
    spec = world.template("decode")["spec"]
    assert spec["containers"][0]["image"] == images.VLLM_NVIDIA


def test_engines_without_signatures_are_told(world):
    world.up()
    world.condition("SignaturesReported", status="Unknown", reason="NoTraffic")
    (router,) = world.routers.values()

    def answers_go_on() -> bool:
        router.signatures = {"exact": 0, "no_signature": router.signatures.get("no_signature", 0) + 20}
        return world.kube.condition(KIND, "x", "SignaturesReported")["status"] == "False"

    world.until(answers_go_on, "a complaint", 100)
    condition = world.condition("SignaturesReported", reason="Missing")
    assert condition["message"].startswith("100% of recent prefill answers carried no expert counts")
    world.condition("Ready", status="True")
    world.until_told("SignaturesMissing")

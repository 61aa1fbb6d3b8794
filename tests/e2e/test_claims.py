"""Accelerators by dynamic resource allocation: the scheduler gives each engine a device of the example's claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from eldr import contract
from tests.e2e.test_quickstart import clean
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), pytest.mark.costly]
ROOT = Path(__file__).parents[2]
__all__ = ["clean"]

DEVICES = 3
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.amd.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.amd.com'"}}]},
}


def devices(node: str) -> dict:
    """Return what AMD's driver says of a node with accelerators."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {
            "driver": "gpu.amd.com",
            "nodeName": node,
            "pool": pool,
            "devices": [{"name": f"gpu-{number}"} for number in range(DEVICES)],
        },
    }


def test_each_engine_gets_a_device_of_its_own(clean, tmp_path):
    cluster = clean
    node = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all([CLASS, devices(node)]))
    try:
        cluster.helm(
            *("install", "eldr", str(ROOT / "charts/eldr"), "-n", "eldr-system", "--create-namespace"),
            *("--set", "resyncSeconds=2"),
        )
        template, deployment = yaml.safe_load_all((ROOT / "examples/dra.yaml").read_text())
        deployment["spec"]["engine"] = {"type": "Simulator"}
        cluster.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all([template, deployment]))
        shown = ("get", "pods,resourceclaims,eldr", "-o", "yaml")

        def allocated() -> list[str]:
            claims = yaml.safe_load(cluster.kubectl("get", "resourceclaims", "-o", "yaml"))["items"]
            return [
                result["device"]
                for claim in claims
                for result in claim.get("status", {})
                .get("allocation", {})
                .get("devices", {})
                .get("results", [])
            ]

        wait_for(
            lambda: len(allocated()) == DEVICES,
            "devices for all engines",
            90,
            show=lambda: cluster.kubectl(*shown),
        )
        assert sorted(allocated()) == ["gpu-0", "gpu-1", "gpu-2"]
        cluster.kubectl(
            "wait", f"eldr/{deployment['metadata']['name']}", "--for=condition=Ready", "--timeout=90s"
        )
        pods = yaml.safe_load(cluster.kubectl("get", "pods", "-l", contract.LABEL_DEPLOYMENT, "-o", "yaml"))[
            "items"
        ]
        asked = [pod["spec"]["containers"][0]["resources"] for pod in pods]
        assert [each["claims"] for each in asked] == [[{"name": "accelerator"}]] * DEVICES
        assert not any("amd.com/gpu" in str(each) for each in asked)
    finally:
        cluster.kubectl(
            "delete", "--ignore-not-found", "deviceclass/gpu.amd.com", f"resourceslice/{node}-gpus"
        )
        cluster.kubectl("delete", "--ignore-not-found", "resourceclaimtemplate/mi300x")

"""The API server takes every example as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from eldr import contract
from tests.operator.world import KIND, simulated
from tests.support.modules import module

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("unattended")]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
KEDA = "github.com/kedacore/keda/v2@v2.18.1"


@pytest.fixture(scope="module")
def keda(installed, tmp_path_factory):
    """KEDA's ScaledObject, as its Go module has it."""
    folder = module(KEDA, tmp_path_factory.mktemp("keda"))
    crd = folder / "config" / "crd" / "bases" / "keda.sh_scaledobjects.yaml"
    installed.kubectl("create", "-f", str(crd))
    installed.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=60s")
    yield
    installed.kubectl("delete", "-f", str(crd))


@pytest.mark.usefixtures("keda")
def test_the_autoscaling_example_is_taken_strictly_and_scales_what_exists(kube):
    path = next(path for path in EXAMPLES if path.stem == "autoscaling")
    kube.kubectl("create", "--validate=strict", "-f", str(path))
    targets = [each["spec"]["scaleTargetRef"] for each in yaml.safe_load_all(path.read_text())]
    assert targets == [
        {"apiVersion": contract.API_VERSION, "kind": contract.KIND_SCALER, "name": f"qwen3-{role}"}
        for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE)
    ]


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem != "autoscaling"], ids=lambda path: path.stem
)
def test_examples_are_taken_strictly(kube, example):
    manifest, *_ = yaml.safe_load_all(example.read_text())
    command = ["-n", kube.namespace, "--validate=strict", "-f", str(example)]
    if "kind" in manifest:
        kube.cluster.kubectl("create", *command)
    else:
        kube.create(KIND, {"name": "qwen3"}, spec=simulated())
        patch = ["patch", "eldr", "qwen3", "--type", "merge", "--patch-file", str(example)]
        kube.kubectl(*patch)

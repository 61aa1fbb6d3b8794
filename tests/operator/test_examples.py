"""The API server takes every example as it stands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from eldr import contract
from eldr_kube.binaries import BinariesUnavailableError, cache_folder, say_on_stderr
from eldr_kube.servers import find_go
from tests.operator.world import KIND, simulated

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("unattended")]

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
KEDA = "github.com/kedacore/keda/v2@v2.18.1"


@pytest.fixture(scope="module")
def keda(installed, tmp_path_factory):
    """KEDA's ScaledObject, as its Go module has it."""
    try:
        go = find_go(cache_folder(), say_on_stderr)
        command = [go, "mod", "download", "-json", KEDA]
        said = subprocess.run(
            command, cwd=tmp_path_factory.mktemp("keda"), capture_output=True, text=True, check=True
        )
    except (BinariesUnavailableError, OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no KEDA here: give this machine access to the Go module proxy ({error})")
    crd = Path(json.loads(said.stdout)["Dir"], "config", "crd", "bases", "keda.sh_scaledobjects.yaml")
    installed.kubectl("create", "-f", str(crd))
    installed.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=60s")
    yield
    installed.kubectl("delete", "-f", str(crd))


@pytest.mark.usefixtures("keda")
def test_the_autoscaling_example_is_taken_strictly_and_scales_what_exists(kube):
    path = next(path for path in EXAMPLES if path.stem == "autoscaling")
    kube.cluster.kubectl("-n", kube.namespace, "create", "--validate=strict", "-f", str(path))
    targets = [each["spec"]["scaleTargetRef"] for each in yaml.safe_load_all(path.read_text())]
    assert targets == [
        {"apiVersion": contract.API_VERSION, "kind": contract.KIND_SCALER, "name": f"qwen3-{role}"}
        for role in (contract.ROLE_PREFILL, contract.ROLE_DECODE)
    ]


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem != "autoscaling"], ids=lambda path: path.stem
)
def test_examples_are_taken_strictly(kube, example):
    manifest = yaml.safe_load(example.read_text())
    command = ["-n", kube.namespace, "--validate=strict", "-f", str(example)]
    if "kind" in manifest:
        kube.cluster.kubectl("create", *command)
    else:
        kube.create(KIND, {"name": "qwen3"}, spec=simulated())
        patch = ["patch", "eldr", "qwen3", "--type", "merge", "--patch-file", str(example)]
        kube.cluster.kubectl("-n", kube.namespace, *patch)

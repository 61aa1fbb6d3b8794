"""A model is downloaded from a hub on loopback by the engine's own ``huggingface_hub``, in a Job that really runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eldr import contract
from eldr_kube.cluster import Cluster
from eldr_kube.vllm import vllm_images
from tests.e2e.conftest import CHART
from tests.support.claims import claim
from tests.support.hub import COMMIT, MODEL, Hub, hub
from tests.support.kube import Kube, Object
from tests.support.processes import wait_for

pytestmark = [pytest.mark.kube, pytest.mark.costly, pytest.mark.timeout(600)]

KIND = contract.KIND_DEPLOYMENT
SECONDS = 90.0


def environment() -> Path:
    """Return an environment with vLLM, whose ``huggingface_hub`` the Job uses."""
    if named := os.environ.get("ELDR_VLLM"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eldr" / "vllm"
    found = sorted(cache.glob("*/bin/vllm"))
    if not found:
        pytest.skip("needs vLLM's environment: run hack/vllm/install")
    return found[-1].parent.parent


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    with Cluster(images=vllm_images(environment())) as cluster:
        cluster.helm("install", "eldr", str(CHART), "--set", "resyncSeconds=2", "--wait", "--timeout", "120s")
        with Kube(cluster, "default") as client:
            yield client


class Download:
    """A deployment whose weights go to a folder of this machine. Nobody waits for its engines."""

    def __init__(self, kube: Kube, name: str, folder: Path, served: Hub) -> None:
        self.kube = kube
        self.name = name
        self.folder = folder
        self._hub = served

    def create(self, **model: Any) -> None:
        manifests = claim(self.name, self.folder)
        self.kube.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
        asked = {"uri": MODEL, "cache": {"claimName": self.name}} | model
        engine = {"env": [{"name": "HF_ENDPOINT", "value": self._hub.url}]}
        # no node has such accelerators: engines are made, and do not run
        spec = {"model": asked, "engine": engine, "accelerator": {"resourceName": "amd.com/gpu"}}
        self.kube.create(KIND, {"name": self.name}, spec=spec)

    def until(self, reason: str) -> Object:
        return self.kube.until_condition(KIND, self.name, "ModelReady", reason=reason)

    def snapshot(self) -> set[str]:
        folder = self.folder / "huggingface" / "hub" / "models--org--tiny" / "snapshots" / COMMIT
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    def has_engines(self) -> bool:
        return self.kube.find("StatefulSet", f"{self.name}-decode") is not None


def test_engines_start_when_the_weights_are_there(kube: Kube, tmp_path: Path):
    with hub() as served:
        download = Download(kube, "plain", tmp_path, served)
        download.create(revision="v1")
        download.until("Downloaded")
        wait_for(download.has_engines, "engines", SECONDS)
        assert download.snapshot() == {"config.json", "model.safetensors"}, "no other formats"
        kube.delete(KIND, "plain")


def test_a_wrong_revision_is_told_and_the_right_one_helps(kube: Kube, tmp_path: Path):
    with hub() as served:
        download = Download(kube, "wrong", tmp_path, served)
        download.create(revision="v9")
        told = download.until("NotFound")["message"]
        assert "Invalid rev id: v9; correct spec.model.revision" in told
        assert kube.condition(KIND, "wrong", "Ready")["reason"] == "NotFound"
        assert not download.has_engines()
        kube.merge(KIND, "wrong", {"spec": {"model": {"revision": COMMIT}}})
        download.until("Downloaded")
        kube.delete(KIND, "wrong")


def test_a_corrected_token_is_read_at_the_next_try(kube: Kube, tmp_path: Path):
    with hub(token="right") as served:
        kube.create("Secret", {"name": "hub"}, stringData={"token": "wrong"})
        download = Download(kube, "gated", tmp_path, served)
        download.create(tokenSecret={"name": "hub"})
        assert "token in spec.model.tokenSecret" in download.until("Unauthorized")["message"]
        kube.merge("Secret", "hub", {"stringData": {"token": "right"}})
        download.until("Downloaded")
        assert "model.safetensors" in download.snapshot()
        kube.delete(KIND, "gated")

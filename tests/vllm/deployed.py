"""An EldrDeployment of real engines on the embedded control plane, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from eldr import contract
from eldr_kube.binaries import BinariesUnavailableError, binaries
from eldr_kube.cluster import Cluster
from eldr_kube.vllm import vllm_images
from tests.vllm.conftest import ENV
from tests.vllm.engines import MODEL, metric, wait_for

START_SECONDS = 300
TOKENS = 40


def spec(*env: str, **fields: Any) -> dict[str, Any]:
    """Return the spec of a deployment of the small model, with variables of its engines that are set to 1."""
    variables = {"VLLM_PLUGINS": "eldr,eldr_cpu", "ELDR_CPU_SHARED_CORES": "1"} | dict.fromkeys(env, "1")
    return {
        "model": {"uri": str(MODEL)},
        "engine": {
            "args": [
                *("--dtype=float32", "--enforce-eager", "--max-model-len=1024", "--max-num-seqs=16"),
                *("--kv-cache-memory-bytes=64M", "--block-size=32"),
            ],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        },
        "prefill": {"replicas": 1},
        "router": {"maxInFlightPerDecode": 16},
        **fields,
    }


class Deployed:
    """The deployment."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def condition(self, name: str) -> dict[str, Any]:
        found = json.loads(self._cluster.kubectl("get", "eldr", self._name, "-o", "json"))
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == name), {})

    def until(self, name: str, **wanted: str) -> dict[str, Any]:
        """Wait until a condition has the wanted fields, and return it."""
        wait_for(
            lambda: wanted.items() <= self.condition(name).items(),
            f"{name} {wanted}",
            START_SECONDS,
            lambda: f"{self.condition(name)}\n{self.show()}",
        )
        return self.condition(name)

    def show(self) -> str:
        return self._cluster.kubectl("get", "eldr,pods", "-o", "wide")

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role that are ready and not ending."""
        selector = f"{contract.LABEL_DEPLOYMENT}={self._name},{contract.LABEL_ROLE}={role}"
        found = json.loads(self._cluster.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [pod for pod in found if _is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def address(self, role: str) -> str:
        return str(self.pods(role)[0]["status"]["podIP"])

    def patch(self, spec: dict[str, Any]) -> None:
        text = json.dumps({"spec": spec})
        self._cluster.kubectl("patch", "eldr", self._name, "--type=merge", "-p", text)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples on the decode engine."""
        return metric(f"http://{self.address(contract.ROLE_DECODE)}:{contract.PORT_ENGINE}", name, **labels)

    def chat(self, number: int) -> dict[str, Any]:
        """Return the answer to a chat of :data:`TOKENS` tokens, by a router that is ready."""
        body = {
            "model": self._name,
            "messages": [{"role": "user", "content": f"Write line {number} of a manual."}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        url = f"http://{self.address(contract.ROLE_PREFILL)}:{contract.PORT_ROUTER}/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=240)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextlib.contextmanager
def deployed(name: str, spec: dict[str, Any]) -> Iterator[Deployed]:
    """Install the operator in a cluster of its own, and create a deployment."""
    try:
        binaries()
    except BinariesUnavailableError as error:
        pytest.skip(f"no control plane here: {error}")
    chart = Path(__file__).parents[2] / "charts" / "eldr"
    with Cluster(images=vllm_images(Path(os.environ[ENV]))) as cluster:
        cluster.helm("install", "eldr", str(chart), "--set", "resyncSeconds=2", "--wait", "--timeout", "120s")
        manifest = {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND_DEPLOYMENT,
            "metadata": {"name": name},
            "spec": spec,
        }
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        yield Deployed(cluster, name)

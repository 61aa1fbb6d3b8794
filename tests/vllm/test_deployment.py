"""An EldrDeployment with an expert-parallel decode role, as a user writes it, on the embedded control plane: real vLLM, two ranks in a pod."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

NAME = "ranks"
CHATS = 12
START_SECONDS = 300
SPEC: dict[str, Any] = {
    "model": {"uri": str(MODEL)},
    "engine": {
        "args": [
            *("--dtype=float32", "--enforce-eager", "--max-model-len=1024", "--max-num-seqs=16"),
            *("--kv-cache-memory-bytes=64M", "--block-size=32"),
        ],
        "env": [
            {"name": "VLLM_PLUGINS", "value": "eldr,eldr_cpu"},
            {"name": "ELDR_CPU_SHARED_CORES", "value": "1"},
            {"name": "ELDR_CPU_EXPERT_PARALLEL", "value": "1"},
        ],
    },
    "prefill": {"replicas": 1},
    "decode": {
        "replicas": 1,
        "gpus": 2,
        "parallelism": {"expert": "Enabled", "redundantExperts": 32, "balance": "Activations"},
    },
    "router": {"maxInFlightPerDecode": 16},
}


class Deployed:
    """The deployment, seen from outside."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def condition(self, name: str) -> dict[str, Any]:
        found = json.loads(self._cluster.kubectl("get", "eldr", NAME, "-o", "json"))
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == name), {})

    def show(self) -> str:
        return self._cluster.kubectl("get", "eldr,pods", "-o", "wide")

    def address(self, role: str) -> str:
        selector = f"{contract.LABEL_DEPLOYMENT}={NAME},{contract.LABEL_ROLE}={role}"
        (pod,) = json.loads(self._cluster.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return str(pod["status"]["podIP"])

    def decode(self, patch: dict[str, Any]) -> None:
        text = json.dumps({"spec": {"decode": patch}})
        self._cluster.kubectl("patch", "eldr", NAME, "--type=merge", "-p", text)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples on the decode engine."""
        return metric(f"http://{self.address(contract.ROLE_DECODE)}:{contract.PORT_ENGINE}", name, **labels)


@pytest.fixture(scope="module")
def deployed() -> Iterator[Deployed]:
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
            "metadata": {"name": NAME},
            "spec": SPEC,
        }
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        yield Deployed(cluster)


def chat(router: str, number: int) -> dict[str, Any]:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": f"Write line {number} of a manual."}],
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{router}/v1/chat/completions", json=body, timeout=240)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_two_ranks_in_one_pod_serve_chats_with_fewer_experts_on_the_fullest(deployed):
    wait_for(
        lambda: deployed.condition("Ready").get("status") == "True", "Ready", START_SECONDS, deployed.show
    )
    router = f"http://{deployed.address(contract.ROLE_PREFILL)}:{contract.PORT_ROUTER}"
    with ThreadPoolExecutor(CHATS) as pool:
        answers = list(pool.map(lambda number: chat(router, number), range(CHATS)))
    assert all(answer["usage"]["completion_tokens"] == 40 for answer in answers)
    assert chat(router, 3)["choices"] == answers[3]["choices"], "greedy, so the same alone as in a batch"
    name = f"{contract.METRIC_FULLEST_RANK}_sum"
    balanced = deployed.metric(name, choice=contract.CHOICE_BALANCED)
    assert 0 < balanced < 0.95 * deployed.metric(name, choice=contract.CHOICE_VLLM)
    assert deployed.metric(contract.METRIC_RECORDS + "_total", result="exact") == CHATS + 1


def test_what_keeps_ranks_from_balancing_is_told_by_the_condition(deployed):
    """Last: the decode engine does not come back."""
    deployed.decode({"args": ["--enable-lora"]})
    refused = {"status": "False", "reason": "EngineRefused"}
    wait_for(
        lambda: refused.items() <= deployed.condition("DecodeReady").items(),
        "the refusal",
        START_SECONDS,
        lambda: f"{deployed.condition('DecodeReady')}\n{deployed.show()}",
    )
    message = deployed.condition("DecodeReady")["message"]
    assert "LoRA" in message
    assert "leave it off" in message

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

START_SECONDS = 300
CHATS, TOKENS = 12, 40
NAME = "ranks"
VARIABLES = {
    "VLLM_PLUGINS": "eldr,eldr_cpu",
    "ELDR_CPU_SHARED_CORES": "1",
    "ELDR_CPU_EXPERT_PARALLEL": "1",
}
SPEC = {
    "model": {"uri": str(MODEL)},
    "engine": {
        "args": [
            *("--dtype=float32", "--enforce-eager", "--max-model-len=1024", "--max-num-seqs=16"),
            *("--kv-cache-memory-bytes=64M", "--block-size=32"),
        ],
        "env": [{"name": name, "value": value} for name, value in VARIABLES.items()],
    },
    "prefill": {"replicas": 1},
    "router": {"maxInFlightPerDecode": 16},
    "decode": {
        "replicas": 1,
        "gpus": 2,
        "parallelism": {"expert": "Enabled", "redundantExperts": 32, "balance": "Activations"},
    },
}


class Deployed:
    """The deployment, seen from outside."""

    def __init__(self, cluster: Cluster) -> None:
        self._kubectl = cluster.kubectl

    def condition(self, name: str) -> dict[str, Any]:
        found = json.loads(self._kubectl("get", "eldr", NAME, "-o", "json"))
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == name), {})

    def until(self, name: str, **wanted: str) -> dict[str, Any]:
        """Wait until a condition has the wanted fields, and return it."""
        wait_for(
            lambda: wanted.items() <= self.condition(name).items(),
            f"{name} {wanted}",
            START_SECONDS,
            lambda: f"{self.condition(name)}\n{self._kubectl('get', 'eldr,pods', '-o', 'wide')}",
        )
        return self.condition(name)

    def address(self, role: str) -> str:
        """Return that of the only pod of a role."""
        selector = f"{contract.LABEL_DEPLOYMENT}={NAME},{contract.LABEL_ROLE}={role}"
        (pod,) = json.loads(self._kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return str(pod["status"]["podIP"])

    def patch(self, spec: dict[str, Any]) -> None:
        self._kubectl("patch", "eldr", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples on the decode engine."""
        return metric(f"http://{self.address(contract.ROLE_DECODE)}:{contract.PORT_ENGINE}", name, **labels)

    def chat(self, number: int) -> dict[str, Any]:
        """Return the answer to a chat of :data:`TOKENS` tokens."""
        body = {
            "model": NAME,
            "messages": [{"role": "user", "content": f"Write line {number} of a manual."}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        url = f"http://{self.address(contract.ROLE_PREFILL)}:{contract.PORT_ROUTER}/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=240)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture(scope="module")
def ranks() -> Iterator[Deployed]:
    """Install the operator in a cluster of its own, and create the deployment."""
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


def test_two_ranks_in_one_pod_serve_chats_with_fewer_experts_on_the_fullest(ranks):
    ranks.until("Ready", status="True")
    with ThreadPoolExecutor(CHATS) as pool:
        answers = list(pool.map(ranks.chat, range(CHATS)))
    assert all(answer["usage"]["completion_tokens"] == TOKENS for answer in answers)
    assert ranks.chat(3)["choices"] == answers[3]["choices"], "greedy, so the same alone as in a batch"
    name = f"{contract.METRIC_FULLEST_RANK}_sum"
    balanced = ranks.metric(name, choice=contract.CHOICE_BALANCED)
    assert 0 < balanced < 0.95 * ranks.metric(name, choice=contract.CHOICE_VLLM)
    assert ranks.metric(contract.METRIC_RECORDS + "_total", result="exact") == CHATS + 1


@pytest.mark.long  # tests/engine has what is refused, tests/operator how a refusal is told
def test_what_keeps_ranks_from_balancing_is_told_by_the_condition(ranks):
    """Last: the decode engine does not come back."""
    ranks.patch({"decode": {"args": ["--enable-lora"]}})
    message = ranks.until("DecodeReady", status="False", reason="EngineRefused")["message"]
    assert "LoRA" in message
    assert "leave it off" in message

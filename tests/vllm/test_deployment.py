"""An EldrDeployment with an expert-parallel decode role, as a user writes it, on the embedded control plane: real vLLM, two ranks in a pod."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from eldr import contract
from tests.vllm.deployed import TOKENS, Deployed, deployed, spec

CHATS = 12
SPEC = spec(
    "ELDR_CPU_EXPERT_PARALLEL",
    decode={
        "replicas": 1,
        "gpus": 2,
        "parallelism": {"expert": "Enabled", "redundantExperts": 32, "balance": "Activations"},
    },
)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Deployed]:
    with deployed("ranks", SPEC) as found:
        yield found


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

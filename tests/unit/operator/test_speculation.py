"""Speculative decoding: which methods pass, and that both roles draft alike where drafts have KV."""

import json

import pytest

from eldr_operator.validation.arguments import uncounted
from eldr_operator.validation.spec import blocked_roles
from eldr_operator.validation.speculation import problems
from tests.unit.operator.builders import make_vllm

NGRAM = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3})]
MTP = ["--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens", "1"]
EAGLE = ["-sc", json.dumps({"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3})]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"engine": {"args": NGRAM}},
        {"decode": {"args": NGRAM}},
        {"prefill": {"args": EAGLE}, "decode": {"args": EAGLE}},
        {
            "prefill": {"args": EAGLE},
            "decode": {"args": ["-sc.method=eagle3", "-sc.model=org/head", "--spec-tokens=3"]},
        },
        {"engine": {"args": ["--spec-model=org/head", "--spec-tokens", "2"]}},
        {"engine": {"args": MTP}, "decode": {"args": ["--spec-method=qwen3_next_mtp"]}},
        {"engine": {"args": EAGLE}, "decode": {"args": ["-sc.attention_backend=FLASH_ATTN"]}},
        {"engine": {"type": "Simulator"}, "decode": {"args": EAGLE}},
    ],
)
def test_let_pass(spec):
    assert problems(make_vllm(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "field", "roles"),
    [
        ({"decode": {"args": EAGLE}}, "spec.decode.args[0]", {"decode"}),
        ({"prefill": {"args": ["--seed=1", *EAGLE]}}, "spec.prefill.args[1]", {"prefill"}),
        (
            {"engine": {"args": EAGLE}, "decode": {"args": ["--spec-model=org/other"]}},
            "spec.decode.args[0]",
            {"decode"},
        ),
        ({"decode": {"args": MTP}}, "spec.decode.args[2]", {"decode"}),
    ],
)
def test_drafts_with_kv_must_be_the_same_on_both_roles(spec, field, roles):
    cr = make_vllm(**spec)
    (found,) = problems(cr)
    assert (found.reason, found.field) == ("InvalidArgument", field)
    assert found.remedy.startswith("write it into spec.engine.args, alike for both roles")
    assert blocked_roles(cr, [found]) == roles


def test_what_is_no_json_is_left_to_vllm():
    assert problems(make_vllm(decode={"args": ["-sc", "[1"]})) == []
    assert problems(make_vllm(decode={"args": ["--speculative-config"]})) == []


def test_drafts_beside_balanced_experts_are_refused():
    parallelism = {"expert": "Enabled", "redundantExperts": 8, "balance": "Activations"}
    (found,) = problems(make_vllm(decode={"args": NGRAM, "gpus": 2, "parallelism": parallelism}))
    assert found.field == "spec.decode.args[0]"
    assert "never tried together" in found.remedy


GRAPHS = "vLLM 0.31 and 0.32 count it with piecewise graphs only"


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"engine": {"args": EAGLE, "image": "registry:5000/vllm:v0.31.1-rocm"}}, False),
        ({"engine": {"args": MTP, "image": "vllm/vllm-openai:v0.33.0"}}, True),
        ({"engine": {"args": [*MTP, "--compilation-config.cudagraph_mode=PIECEWISE"]}}, True),
        ({"engine": {"args": [*MTP, "--enforce-eager"]}}, True),
        ({"engine": {"args": MTP, "env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}}, True),
        ({"engine": {"args": MTP}, "decode": {"gpus": 0}}, True),
        ({"engine": {"args": NGRAM}}, True),
        ({"engine": {"args": ["--compilation-config.cudagraph_mode=FULL"]}}, True),
    ],
)
def test_full_graphs_that_hide_drafts_are_named(spec, counts):
    reasons = uncounted(make_vllm(**spec), "decode")
    assert [reason.partition("): ")[2].partition(":")[0] for reason in reasons] == (
        [] if counts else [GRAPHS]
    )

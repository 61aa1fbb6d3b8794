"""Histograms by OpenTelemetry's names, as a router serves them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eldr_router.ops.gen_ai import GenAi
from tests.fakes.engines import answer, counted
from tests.router.conftest import AUTH, until


async def samples(router) -> dict[tuple[str, str, str, str], float]:
    """Counts by histogram, operation, model and error."""
    page = await router.client.get(f"{router.admin}/metrics", headers=AUTH)
    found = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            if sample.name.startswith("gen_ai_") and sample.name.endswith("_count"):
                labels = sample.labels
                assert labels["gen_ai_provider_name"] == "vllm"
                key = (
                    labels["gen_ai_operation_name"],
                    labels["gen_ai_request_model"],
                    labels.get("error_type", "-"),
                )
                found[(family.name.removeprefix("gen_ai_server_"), *key)] = sample.value
    return found


async def test_requests_are_measured_by_the_conventions(start):
    async with start("p0", "d0") as router:
        router["d0"].script.append(counted)
        assert (await router.post(stream=True, stream_options={"include_usage": True})).status_code == 200
        assert (
            await router.post("/v1/chat/completions", prompt=None, messages=[], max_tokens=5)
        ).status_code == 200
        router["p0"].script.append(answer(404, {"error": {"message": "no such model"}}))
        assert (await router.post(model="unknown")).status_code == 404
        await until(router.idle, "all to be over")
        assert await samples(router) == {
            ("request_duration_seconds", "text_completion", "m", ""): 1,
            ("request_duration_seconds", "chat", "m", ""): 1,
            ("request_duration_seconds", "text_completion", "", "engine_error"): 1,
            ("time_to_first_token_seconds", "text_completion", "m", "-"): 1,
            ("time_per_output_token_seconds", "text_completion", "m", "-"): 1,
        }


@pytest.mark.parametrize("count", [99, 100])
def test_labels_stay_bounded(count):
    metrics = GenAi()
    for i in range(count):
        metrics("chat", f"m{i}", "", 1.0)
    metrics("chat", "one more", "", 1.0, first=0.5, tokens=3)
    duration, first, per_token = metrics.collect()
    assert len({s.labels["gen_ai_request_model"] for s in duration.samples}) == count + 1
    assert {s.labels["gen_ai_request_model"] for s in first.samples} == {
        "one more" if count < 100 else "_OTHER"
    }
    (total,) = (s.value for s in per_token.samples if s.name.endswith("_sum"))
    assert total == 0.25

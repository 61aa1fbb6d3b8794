"""Real engines serve on, token for token, where counting fails."""

from dataclasses import replace

import httpx
import pytest

from eldr import contract
from tests.support.processes import wait_for
from tests.vllm.engines import NAME, Engine, Setup
from tests.vllm.fleet import serving
from tests.vllm.pair import Pair

WHY = "counting failed: RuntimeError('CUDA out of memory')"
PROMPT = list(range(300, 360))


@pytest.fixture
def engines(environment, plugin, tmp_path):
    setup = Setup(role="prefill", plugin=plugin, max_len=512, children=("Fault",))
    found = [
        Engine(f"{role}-fault", replace(setup, role=role), environment, tmp_path)
        for role in ("prefill", "decode")
    ]
    with serving(*found):
        yield found


def signature(engine):
    """Return what a prefill engine says of the experts of a prompt."""
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 1, contract.KV_KEY: {"do_remote_decode": True}}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()[contract.KV_KEY][contract.ELDR_KEY]


def test_both_engines_serve_on_without_counts_and_say_why(engines):
    prefill, decode = engines
    pair = Pair(prefill.url, decode.url, NAME)
    expected = pair.ask(PROMPT, 20).generated
    records = f"{contract.METRIC_RECORDS}_total"
    for engine in engines:
        wait_for(lambda e=engine: e.metric(records, result="exact") == 1, f"{engine.name} to count", 30)
        (engine.gate / "fault").touch()
    for _ in range(3):
        assert signature(prefill)["unavailable"] == WHY
        assert pair.ask_decode_only(PROMPT, 20).generated == expected
    for engine in engines:
        wait_for(lambda e=engine: e.metric(records, result="unavailable") >= 3, f"{engine.name} to tell", 30)
        assert engine.metric(records, result="exact") == 1
        assert engine.log.read_text().count("ELDR: counting failed") == 1
        assert httpx.get(f"{engine.url}/health", timeout=10).status_code == 200
    pair.close()

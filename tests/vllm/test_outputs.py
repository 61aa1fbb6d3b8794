"""A prefill and two decode engines behind the router say what one plain engine says, token by token."""

from __future__ import annotations

import pytest

from tests.vllm.client import ask
from tests.vllm.prompts import OUTPUTS

SOURCE = "vllm:prompt_tokens_by_source_total"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_token_ids_equal_those_of_a_plain_engine(serve, fleet, correct, stream):
    with serve("p", "d0", "d1") as router:
        decode = [fleet["d0"], fleet["d1"]]
        before = [engine.metric(SOURCE, source="external_kv_transfer") for engine in decode]
        served = []
        turned = OUTPUTS[1:] + OUTPUTS[:1]  # the engines take turns: each prompt gets to the other one
        for case in turned if stream else OUTPUTS:
            answer = ask(router.url, case, stream=stream)
            correct(case, answer)
            served.append(answer.headers["x-eldr-decode"])
        assert set(served) == {"d0", "d1"}
        for engine, was in zip(decode, before, strict=True):
            assert engine.metric(SOURCE, source="external_kv_transfer") > was, f"{engine.name} pulled nothing"
        assert router.counter("retries") == 0
        assert router.counter("whole") == 0
        assert router.counter("requests", outcome="ok") == len(OUTPUTS)

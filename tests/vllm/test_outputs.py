"""A prefill and two decode engines behind the router say what one plain engine says, token by token."""

from __future__ import annotations

import pytest

from tests.vllm.client import ask
from tests.vllm.engines import BLOCK, GPU_MODE
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


@pytest.mark.long  # tests/vllm/test_signatures.py has engines in this mode
def test_token_ids_are_the_same_in_the_mode_of_gpus(serve, fleet, correct):
    with serve("p-gpu-mode", "d-gpu-mode") as router:
        for name in ("p-gpu-mode", "d-gpu-mode"):
            assert fleet[name].mode() == GPU_MODE
        for case in OUTPUTS[:5] + OUTPUTS[-3:]:
            correct(case, ask(router.url, case, stream=True))
        assert fleet["d-gpu-mode"].metric(SOURCE, source="external_kv_transfer") > 0
        assert router.counter("retries") == router.counter("whole") == 0


@pytest.mark.long  # tests/vllm/test_signatures.py asks for many at once
def test_requests_at_the_same_time_do_not_disturb_each_other(serve, fleet, correct, background):
    with serve("p", "d0", "d1", max_in_flight=2) as router:
        small = [case for case in OUTPUTS if len(str(case.prompt)) < 50 * BLOCK][:12]
        for at in range(0, len(small), 4):
            some = small[at : at + 4]
            answers = [background.submit(ask, router.url, case, stream=True) for case in some]
            for case, answer in zip(some, answers, strict=True):
                correct(case, answer.result())

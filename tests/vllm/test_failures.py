"""What goes wrong between real engines, and that a client either gets the right tokens or is told.

Every answer is compared, token id by token id, with that of an engine which knows no transfer.
"""

from __future__ import annotations

import http.client
import json
import threading

import httpx
import pytest

from tests.vllm.client import SECONDS, Answer, ask
from tests.vllm.engines import wait_for
from tests.vllm.prompts import COMPLETIONS, LONG

SOURCE = "vllm:prompt_tokens_by_source_total"


def pulled(engine) -> float:
    """Prompt tokens whose blocks an engine has pulled."""
    return engine.metric(SOURCE, source="external_kv_transfer")


def computed(engine) -> float:
    """Prompt tokens that an engine has computed itself."""
    return engine.metric(SOURCE, source="local_compute")


def prefills(engine) -> float:
    return engine.metric("vllm:request_success_total")


def holds(engine) -> bool:
    """Tell whether an engine keeps blocks, for a running request or for a pull."""
    return engine.metric("vllm:kv_cache_usage_perc") > 0


_PULL = {
    "do_remote_prefill": True, "remote_engine_id": "x", "remote_request_id": "y", "remote_host": "127.0.0.1",
    "remote_port": 1, "remote_block_ids": [[1]], "tp_size": 1,
}  # fmt: skip
_HALF = {"do_remote_prefill": True}
# tests/engine/test_malformed.py has all kinds
MALFORMED = [
    {"kv_transfer_params": _HALF},
    {"vllm_xargs": {"kv_transfer_params": "x"}},
    {"kv_transfer_params": _PULL | {"remote_block_ids": [[-5]]}},
    {"kv_transfer_params": _HALF, "model": "one that it does not serve"},
]


@pytest.mark.parametrize("name", ["p", "d0"])
def test_malformed_parameters_of_a_transfer_end_no_engine(fleet, correct, fresh, name):
    """One such request ends a stock engine, and all that run in it: who reaches an engine past the router can send anything."""
    (engine,), case = fleet.up(name), fresh()
    for fields in MALFORMED:
        # of what is no object vLLM 0.32 says 500 before it comes to the scheduler, or does not look at it
        allowed = {"404"} if "model" in fields else {"ok", "500"} if "vllm_xargs" in fields else {"ok"}
        assert ask(engine.url, case, stream=False, **fields).outcome in allowed, fields
        correct(case, ask(engine.url, case, stream=True))


@pytest.mark.long
def test_a_prefill_engine_killed_before_the_pull_then_restarted(serve, fleet, correct, fresh, background):
    with serve("p", "d0") as router:
        p, d0 = fleet["p"], fleet["d0"]
        case = fresh()
        correct(case, ask(router.url, case, stream=False))
        assert pulled(d0), "the engines know each other"
        before = computed(d0)

        case = fresh()
        d0.pause()  # it accepts the request and reads nothing, so the pull cannot begin
        answer = background.submit(ask, router.url, case, stream=True)
        wait_for(lambda: router.loads()["d0"], "the prefill to be answered and d0 to be chosen", 60)
        wait_for(lambda: holds(p), "p to keep the result for its pull", 60)
        p.kill()
        d0.resume()
        correct(case, answer.result())
        assert router.counter("retries", leg="decode") == 1
        assert router.counter("whole", reason="prefill_refused") == 1, "nobody was left to prefill it"
        assert computed(d0) > before, "d0 has computed the prompt"

        fleet.up("p", "d0")
        before = pulled(d0)
        for stream in (False, True):
            case = fresh()
            correct(case, ask(router.url, case, stream=stream))
        assert pulled(d0) > before, "the new process at the old address is pulled from"
        assert router.counter("retries", leg="decode") == 1


def test_a_client_that_leaves_frees_everything(serve, fleet, correct, fresh):
    with serve("p", "d0") as router:
        d0 = fleet["d0"]
        url = router.url + LONG.path
        for _ in range(5):
            with httpx.stream("POST", url, json=LONG.body(stream=True), timeout=SECONDS) as stream:
                lines = stream.iter_lines()  # a generator that is thrown away closes the stream
                assert next(lines).startswith("data: ")
                # an engine counts a step after it has sent the step's tokens
                wait_for(
                    lambda: d0.requests() == 1 or not router.loads()["d0"], "d0 to count the request", 60
                )
                if router.loads()["d0"]:
                    break  # and leave
        else:
            pytest.fail("every answer was complete before its first line could be read")
        wait_for(lambda: not router.in_flight(), "the router to notice", 60, router.loads)
        wait_for(lambda: not d0.requests(), "d0 to drop the request", 60)
        wait_for(lambda: not holds(d0), "d0 to free its blocks", 60)

        # one that is not streamed leaves as well
        connection = http.client.HTTPConnection(router.url.removeprefix("http://"))
        body, headers = json.dumps(LONG.body()), {"content-type": "application/json"}
        connection.request("POST", LONG.path, body, headers)
        wait_for(lambda: d0.requests() == 1, "d0 to work on it", 60)
        connection.close()
        wait_for(lambda: not router.in_flight(), "the router to notice", 60, router.loads)
        wait_for(lambda: not d0.requests(), "d0 to drop the request", 60)
        case = fresh()
        correct(case, ask(router.url, case, stream=True))


def test_a_decode_engine_killed_after_its_pull_and_before_its_first_token(
    serve, fleet, correct, fresh, background
):
    """d1 is held where it has just learned that the blocks have arrived.

    When p frees them is not waited for: the word of it may not leave d1 as long as that is held, and nothing rests on it.
    """
    with serve("p", "d1") as router:
        p, d1 = fleet["p"], fleet["d1"]
        prefilled = prefills(p)
        closed = d1.gate / "closed"
        closed.touch()
        case = fresh()
        answer = background.submit(ask, router.url, case, stream=True)
        wait_for((d1.gate / "pulled").exists, "d1 to pull", 120, d1.tail)
        assert not answer.done()
        (d0,) = fleet.up("d0")
        router.configure({engine.name: engine.url for engine in (p, d1, d0)})
        wait_for(lambda: "d0" in router.loads(), "the router to know d0")
        d1.kill()
        closed.unlink()
        correct(case, answer.result())
        assert answer.result().headers["x-eldr-decode"] == "d0"
        assert router.counter("retries", leg="decode", cause="reset") == 1
        assert prefills(p) == prefilled + 2, "the prompt was prefilled again"


def test_an_engine_that_drains_loses_nothing(serve, fleet, correct, fresh, background):
    """SIGTERM under load, before anybody told the router: what runs is finished, the rest goes elsewhere."""
    # an engine that shuts down may never answer what it has just accepted
    impatient = ("--decode-idle-timeout-seconds", "90")
    with serve("p", "d0", "d1", options=impatient) as router:
        d1 = fleet["d1"]
        answers: list[tuple[object, Answer]] = []
        enough = threading.Event()
        cases = [fresh() for _ in range(3)]

        def keep_asking(case) -> None:
            while not enough.is_set():
                answers.append((case, ask(router.url, case, stream=case.path == COMPLETIONS)))

        workers = [background.submit(keep_asking, case) for case in cases]
        try:
            wait_for(lambda: len(answers) >= 3 and router.loads()["d1"], "d1 to be busy", 240)
            d1.terminate()
            wait_for(d1.exited, "d1 to finish what it has and end", 180, d1.tail)
            seen = len(answers)
            wait_for(lambda: len(answers) >= seen + 3, "d0 to serve the rest", 240)
        finally:
            enough.set()
            for worker in workers:
                worker.result()
        for case, answer in answers:
            correct(case, answer)
        counts = [router.counter("requests", **only) for only in ({}, {"outcome": "ok"})]
        assert counts == [len(answers)] * 2

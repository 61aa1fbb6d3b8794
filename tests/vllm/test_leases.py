"""Blocks that were given to others before they were pulled: real engines then decode wrong tokens without an error."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from collections.abc import Iterator

import httpx

from tests.vllm.client import SECONDS, ask
from tests.vllm.conftest import SHORT_LEASE
from tests.vllm.engines import wait_for
from tests.vllm.prompts import FILLER, LONG

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}


@contextlib.contextmanager
def never_accepts() -> Iterator[str]:
    """Yield the URL of a port whose connections hang: its queue is full and nobody empties it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(address)
        yield f"http://127.0.0.1:{address[1]}"


def overwrite(engine) -> None:
    """Fill an engine's KV cache with other prompts."""
    for case in FILLER:
        assert ask(engine.url, case, stream=False).outcome == "ok"


def ask_prefill(url: str, case) -> dict:
    """Prefill a case directly and return what a decode engine needs to pull it."""
    body = case.body(max_tokens=1, kv_transfer_params=REMOTE_DECODE)
    answer = httpx.post(url + case.path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["kv_transfer_params"]


def test_a_late_pull_gives_wrong_tokens_without_an_error(fleet, correct, expected, fresh):
    """What the router must prevent, shown without it; the tests below could not fail otherwise."""
    p, d0 = fleet.up("p-short", "d0")
    case = fresh()
    expired = p.metric(EXPIRED)
    prefilled = ask_prefill(p.url, case)
    wait_for(lambda: p.metric(EXPIRED) > expired, "the lease to end", 60)
    overwrite(p)
    late = ask(d0.url, case, stream=False, kv_transfer_params=prefilled)
    assert late.outcome == "ok"
    assert late.ids != expected[case.name]
    case = fresh()
    correct(case, ask(d0.url, case, stream=False, kv_transfer_params=ask_prefill(p.url, case)))


def test_a_result_whose_lease_is_over_is_prefilled_again(serve, fleet, correct, fresh, background):
    """The engine that is chosen first does not accept the connection before the lease is over."""
    patience = ("--connect-timeout-seconds", str(2 * SHORT_LEASE))
    with (
        never_accepts() as stuck,
        serve("p-short", "d0", options=patience, lease_seconds=SHORT_LEASE) as router,
    ):
        p, d0 = fleet["p-short"], fleet["d0"]
        router.configure({"p-short": p.url, "d-stuck": stuck})
        wait_for(lambda: {"p-short", "d-stuck"} == router.loads().keys(), "the router to know it")
        case = fresh()
        expired = p.metric(EXPIRED)
        answer = background.submit(ask, router.url, case, stream=True)
        wait_for(lambda: router.loads()["d-stuck"], "the prefill to be answered", 60)
        router.configure({"p-short": p.url, "d-stuck": stuck, "d0": d0.url})
        wait_for(lambda: p.metric(EXPIRED) > expired, "the lease to end", 60)
        overwrite(p)
        correct(case, answer.result())
        assert answer.result().headers["x-eldr-decode"] == "d0"
        assert router.counter("expired_results") == 1


def test_no_request_waits_at_a_full_engine_beyond_its_lease(serve, fleet, correct, fresh, background):
    """One long answer fills d0 for longer than the lease; others are told to come back."""
    with serve("p-short", "d0", lease_seconds=SHORT_LEASE, max_in_flight=1) as router:
        p, d0 = fleet["p-short"], fleet["d0"]
        expired, preempted = p.metric(EXPIRED), d0.metric("vllm:num_preemptions_total")
        long = background.submit(ask, router.url, LONG, stream=True)
        wait_for(lambda: d0.requests() == 1, "d0 to be full", 60)
        case = fresh()
        refused = 0
        while (answer := ask(router.url, case, stream=True)).outcome != "ok":
            assert answer.outcome == "429", answer
            refused += 1
            assert d0.requests() <= 1, "none waits there"
            concurrent.futures.wait([long], float(answer.headers["retry-after"]))
        correct(case, answer)
        correct(LONG, long.result())
        assert refused, "d0 was not full"
        assert p.metric(EXPIRED) == expired
        assert d0.metric("vllm:num_preemptions_total") == preempted


def test_several_sequences_of_one_request_fill_an_engine_as_well(serve, fleet, correct, fresh, background):
    with serve("p-short", "d0", lease_seconds=SHORT_LEASE, max_in_flight=2) as router:
        p, d0 = fleet["p-short"], fleet["d0"]
        expired = p.metric(EXPIRED)
        wide = LONG.body(n=2, max_tokens=700, temperature=1)
        both = background.submit(httpx.post, router.url + LONG.path, json=wide, timeout=SECONDS)
        wait_for(lambda: d0.requests() == 2, "d0 to run both", 60)
        assert router.loads()["d0"] == 2
        case = fresh()
        assert ask(router.url, case, stream=True).outcome == "429"
        assert [len(choice["token_ids"]) for choice in both.result().json()["choices"]] == [700, 700]
        correct(case, ask(router.url, case, stream=True))
        assert p.metric(EXPIRED) == expired

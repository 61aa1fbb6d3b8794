"""Blocks that were given to others before they were pulled: real engines then decode wrong tokens without an error."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from eldr.contract import LATE_DISCARDED, LATE_PREFILLED, PATH_ACTIVATIONS, PULL_BEFORE_KEY
from eldr.wire import ExpertCounts, decode_counts
from eldr_router.api.bodies import freeing_body
from eldr_router.api.paths import COMPLETIONS
from tests.vllm.client import ask
from tests.vllm.conftest import LEASE, SHORT_LEASE
from tests.vllm.engines import CPU_MODE, wait_for
from tests.vllm.prompts import FILLER, LONG

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
LATE = "eldr_engine_late_pulls_total"
USED = "vllm:kv_cache_usage_perc"
JSON = {"content-type": "application/json"}
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


def records(engine) -> list[ExpertCounts]:
    """Return what a decode engine's requests activated, oldest first."""
    found, query = [], {"after": 0, "limit": 256}
    while True:
        page = httpx.get(engine.url + PATH_ACTIVATIONS, params=query, timeout=60).json()
        found += map(decode_counts, page["records"])
        if page["next"] == query["after"]:
            return found
        query["after"] = page["next"]


@pytest.mark.long
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


@pytest.mark.parametrize("name", [pytest.param("d0", marks=pytest.mark.long), "d-gpu-mode"])
def test_a_decode_engine_does_not_pull_after_the_deadline(fleet, correct, fresh, background, name):
    """It is stopped with the request before it, and goes on when the blocks are somebody else's."""
    p, d0 = fleet.up("p-short", name)
    assert d0.mode() == (d0.setup.mode or CPU_MODE)
    late, expired, before = d0.metric(LATE, outcome=LATE_PREFILLED), p.metric(EXPIRED), len(records(d0))
    case = fresh()
    params = ask_prefill(p.url, case) | {PULL_BEFORE_KEY: time.time() + 0.8 * SHORT_LEASE}
    d0.pause()
    try:
        answer = background.submit(ask, d0.url, case, stream=False, kv_transfer_params=params)
        wait_for(lambda: p.metric(EXPIRED) > expired, "the lease to end", 60)
        overwrite(p)
    finally:
        d0.resume()
    correct(case, answer.result())
    assert d0.metric(LATE, outcome=LATE_PREFILLED) == late + 1
    params = ask_prefill(p.url, case) | {PULL_BEFORE_KEY: time.time() + 60}
    correct(case, ask(d0.url, case, stream=False, kv_transfer_params=params))
    wait_for(lambda: len(records(d0)) == before + 2, "what both activated", 60)
    prefilled, pulled = records(d0)[-2:]
    assert prefilled.exact
    assert prefilled.tokens == case.tokens - 1, "the prompt does not count, though it was computed here"
    assert np.array_equal(prefilled.counts, pulled.counts)


def test_a_result_is_freed_by_a_rejection_whatever_runs_on_the_engine(fleet, correct, fresh, background):
    p, d0 = fleet.up("p", "d0")
    long = background.submit(ask, d0.url, LONG, stream=False)
    wait_for(lambda: d0.requests() == 1, "d0 to be full", 60)
    used, case = p.metric(USED), fresh()
    params = ask_prefill(p.url, case)
    assert p.metric(USED) > used
    for _ in range(2):  # the second time vLLM knows of nothing to free
        refused = httpx.post(d0.url + COMPLETIONS, content=freeing_body(params), headers=JSON, timeout=60)
        assert refused.status_code == 400
        wait_for(lambda: p.metric(USED) <= used, "the blocks to be free", 2 / 3 * LEASE, p.tail)
    assert long.result().outcome == "ok"
    correct(case, ask(d0.url, case, stream=False, kv_transfer_params=ask_prefill(p.url, case)))


def test_what_arrives_after_the_deadline_is_not_used(fleet, correct, fresh, background):
    """The scheduler decides in time, but its worker is stopped and begins to pull when the blocks are somebody else's."""
    p, d0 = fleet.up("p-short", "d0")
    late, expired = d0.metric(LATE, outcome=LATE_DISCARDED), p.metric(EXPIRED)
    case = fresh()
    # far enough away for the scheduler of a busy machine, though the lease is shorter
    deadline = time.time() + 4 * SHORT_LEASE
    params = ask_prefill(p.url, case) | {PULL_BEFORE_KEY: deadline}
    d0.pause("Worker")
    try:
        answer = background.submit(ask, d0.url, case, stream=False, kv_transfer_params=params)
        wait_for(lambda: p.metric(EXPIRED) > expired, "the lease to end", 60)
        wait_for(lambda: time.time() > deadline, "the deadline", 60)
        overwrite(p)
    finally:
        d0.resume()
    assert answer.result().outcome == "500", answer.result()
    wait_for(lambda: d0.metric(USED) == 0, "its blocks to be free", 60)
    assert d0.metric(LATE, outcome=LATE_DISCARDED) == late + 1
    params = ask_prefill(p.url, case) | {PULL_BEFORE_KEY: time.time() + 60}
    correct(case, ask(d0.url, case, stream=False, kv_transfer_params=params))


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

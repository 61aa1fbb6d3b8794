"""The limit that an engine keeps itself: exact for any number of clients, API servers and routers, and nothing is lost by a refusal."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import re
import threading
from pathlib import Path

import httpx
import pytest

from eldr.contract import HEADER_FULL, HEADER_LIMIT, METRIC_IN_FLIGHT, METRIC_REFUSED, PATH_LOAD
from tests.support.router import router
from tests.vllm.client import SECONDS, ask
from tests.vllm.conftest import LEASE
from tests.vllm.engines import NAME, Engine, Setup, wait_for
from tests.vllm.fleet import serving
from tests.vllm.prompts import OUTPUTS
from tests.vllm.test_leases import ask_prefill

PROMPT = "The package manager keeps a list. " * 3
TURN = [{"role": "user", "content": PROMPT}]
BODIES = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True},
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 12, "ignore_eos": True},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 12, "store": False},
    "/v1/messages": {"messages": TURN, "max_tokens": 12},
}


def load(url: str) -> int:
    return httpx.get(url + PATH_LOAD, timeout=60).json()["in_flight"]


@contextlib.contextmanager
def watched(url: str):
    """Yield a list to which what the engine counts, and what vLLM has, is added all the time."""
    seen, over = [], threading.Event()

    def watch():
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                text = client.get(f"{url}/metrics").text
                rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
                has = sum(
                    float(value)
                    for name, value in rows
                    if name.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
                )
                seen.append((client.get(url + PATH_LOAD).json()["in_flight"], has))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def burst(url: str, path: str, *, stream: bool, clients: int, limit: int) -> collections.Counter:
    """Ask at once, and return how often there was which answer."""
    body, headers = {"model": NAME, "stream": stream, **BODIES[path]}, {HEADER_LIMIT: str(limit)}
    go = threading.Barrier(clients)

    def one() -> tuple[int, str | None]:
        with httpx.Client(timeout=SECONDS) as client:
            go.wait()
            answer = client.post(url + path, json=body, headers=headers)
        if answer.status_code == 200:
            assert not re.search(r'"error": ?\{|event: error', answer.text), (
                "an error, not the word of a random model"
            )
        return answer.status_code, answer.headers.get(HEADER_FULL)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return collections.Counter(pool.map(lambda _: one(), range(clients)))


def never_above(url: str, limit: int, paths=tuple(BODIES), clients: int = 64) -> None:
    """Every API, whole and streamed: as many as there is room for are served, the rest is refused before it begins."""
    with watched(url) as seen:
        for path in paths:
            for stream in (False, True):
                answers = burst(url, path, stream=stream, clients=clients, limit=limit)
                assert set(answers) == {(200, None), (429, f"{limit}/{limit}")}, (path, stream, answers)
                assert answers[200, None] >= limit
    assert max(count for count, _ in seen) <= limit
    # a cancelled or finished request leaves vLLM's own gauge a step later than our count
    above = [has > limit for _, has in seen]
    assert not any(map(all, zip(above, above[1:], above[2:], strict=False))), seen
    assert max(has for _, has in seen) <= 2 * limit, seen
    wait_for(lambda: load(url) == 0, "the count to be zero", 60)


def test_an_engine_never_runs_more_than_its_limit(fleet):
    (d0,) = fleet.up("d0")
    refused = d0.metric(f"{METRIC_REFUSED}_total")
    never_above(d0.url, 4)
    assert d0.metric(f"{METRIC_REFUSED}_total") > refused
    assert d0.metric(METRIC_IN_FLIGHT) == 0


@contextlib.contextmanager
def open_streams(url: str, path: str, count: int = 4):
    """Have clients read the beginning of long answers, and leave."""
    body = {"model": NAME, "stream": True, **BODIES[path]}
    body |= {key: 400 for key in ("max_tokens", "max_output_tokens") if key in body}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=SECONDS))
        for _ in range(count):
            assert stack.enter_context(client.stream("POST", url + path, json=body)).status_code == 200
        assert load(url) == count
        yield


def leave(url: str, path: str, *, stream: bool) -> None:
    """Have clients leave before their answers are complete: none of them may be counted any longer."""
    if stream:
        with open_streams(url, path):
            pass
    else:
        body = {"model": NAME, **BODIES[path]} | {"max_tokens": 400, "max_output_tokens": 400}
        with concurrent.futures.ThreadPoolExecutor(4) as pool, httpx.Client() as client:
            asked = [pool.submit(client.post, url + path, json=body, timeout=1.0) for _ in range(4)]
            assert {type(one.exception()) for one in asked} == {httpx.ReadTimeout}
    wait_for(lambda: load(url) == 0, "the count to be zero", 60)


def test_clients_that_leave_leave_no_count_behind(fleet):
    (d0,) = fleet.up("d0")
    for path in BODIES:
        for stream in (True, False):
            leave(d0.url, path, stream=stream)
            wait_for(lambda: not d0.requests(), "vLLM to be idle", 60)


def test_a_refused_result_can_still_be_used(fleet, correct, fresh, background):
    p, d0 = fleet.up("p", "d0")
    long = [background.submit(httpx.post, d0.url + "/v1/completions", json={"model": NAME, "prompt": "a", "max_tokens": 700, "ignore_eos": True}, timeout=SECONDS) for _ in range(2)]  # fmt: skip
    wait_for(lambda: load(d0.url) == 2, "d0 to be full", 60)
    case = fresh()
    params = ask_prefill(p.url, case)
    for stream in (False, True, False):
        body = case.body(stream=stream, kv_transfer_params=params)
        answer = httpx.post(d0.url + case.path, json=body, headers={HEADER_LIMIT: "2"}, timeout=SECONDS)
        assert (answer.status_code, answer.headers[HEADER_FULL]) == (429, "2/2")
    correct(case, ask(d0.url, case, stream=True, kv_transfer_params=params))
    assert [answer.result().status_code for answer in long] == [200, 200]


def test_routers_that_know_nothing_of_each_other_share_engines(fleet, correct, tmp_path):
    """Each of them fills every engine by what it reports: what is too much comes back and goes elsewhere, with its one prefill."""
    p, d0, d1 = fleet.up("p", "d0", "d1")
    urls = {engine.name: engine.url for engine in (p, d0, d1)}
    cases = [case for case in OUTPUTS if len(str(case.prompt)) < 3000] * 2
    # of a prompt below a block there is no result to keep: such a request waits in line, and begins again
    short = [case for case in cases if "one" in case.name]
    settings = {
        "model": NAME,
        "lease_seconds": LEASE,
        "max_in_flight": 3,
        "max_waiting": 64,
        "max_wait_seconds": SECONDS,
    }
    with (
        router(tmp_path / "one", urls, **settings) as one,
        router(tmp_path / "other", urls, **settings) as other,
        watched(d0.url) as at_d0,
        watched(d1.url) as at_d1,
        concurrent.futures.ThreadPoolExecutor(len(cases)) as pool,
    ):

        def counted(cases) -> tuple[int, int, int]:
            """Have both routers answer these cases at once: prefills, retries of declined requests, other retries."""
            counts = lambda: (  # noqa: E731
                p.metric("vllm:request_success_total"),
                sum(each.counter("retries", cause="full") for each in (one, other)),
                sum(each.counter("retries") for each in (one, other)),
            )
            before = counts()
            answers = [
                pool.submit(ask, (one, other)[at % 2].url, case, stream=at % 3 > 0)
                for at, case in enumerate(cases)
            ]
            for case, answer in zip(cases, answers, strict=True):
                correct(case, answer.result())
            prefills, declined, retries = (after - was for after, was in zip(counts(), before, strict=True))
            return prefills, declined, retries - declined

        kept = [case for case in cases if case not in short]
        prefills, _, others = counted(kept)
        assert len(kept) <= prefills <= len(kept) + others, (
            "one prefill for each request, however often it was declined"
        )
        prefills, declined, others = counted(short)
        assert len(short) <= prefills <= len(short) + others + declined
    assert max(count for count, _ in at_d0 + at_d1) <= 3
    wait_for(lambda: load(d0.url) == load(d1.url) == 0, "the counts to be zero", 60)


def test_traffic_that_passes_a_router_counts(fleet, correct, tmp_path):
    """Clients of an engine itself fill it, and the router sends requests elsewhere."""
    urls = {engine.name: engine.url for engine in fleet.up("p", "d0", "d1")}
    cases = [case for case in OUTPUTS if len(str(case.prompt)) < 3000 and "one" not in case.name][:4]
    long = {"model": NAME, "prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
    with (
        router(tmp_path / "beside", urls, model=NAME, lease_seconds=LEASE, max_in_flight=3) as beside,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        direct = [
            pool.submit(httpx.post, f"{urls['d0']}/v1/completions", json=long, timeout=SECONDS)
            for _ in range(3)
        ]
        totals = lambda: {engine["name"]: engine["total"] for engine in beside.state()["decode"]}  # noqa: E731
        wait_for(lambda: totals()["d0"] == 3, "what passes the router to be seen", 60)
        answers = [(case, ask(beside.url, case, stream=True), load(urls["d0"])) for case in cases]
        for case, answer, _ in answers:
            correct(case, answer)
        elsewhere = [answer.headers["x-eldr-decode"] for _, answer, there in answers if there == 3]
        assert set(elsewhere) == {"d1"}, "while the other one was full"
        assert [one.result().status_code for one in direct] == [200] * 3


@pytest.mark.parametrize(
    "arguments",
    [("--api-server-count", "2"), ("--data-parallel-size", "2", "--enable-expert-parallel")],
    ids=["two API servers", "two ranks, each with a server"],
)
def test_api_servers_share_the_limit(tmp_path, plugin, arguments):
    env = {"ELDR_CPU_EXPERT_PARALLEL": "1"}  # its kernels on a CPU
    setup = Setup(role="decode", plugin=plugin, max_len=512, arguments=arguments, env=env)
    engine = Engine("d-shared", setup, Path(os.environ["ELDR_VLLM"]), tmp_path)
    with serving(engine):
        never_above(engine.url, 4)
        for stream in (True, False):
            leave(engine.url, "/v1/completions", stream=stream)
        wide = httpx.get(engine.url + PATH_LOAD, timeout=60).json()["limit"]
        assert wide == 16 * (2 if "--data-parallel-size" in arguments else 1)
        with contextlib.suppress(httpx.RemoteProtocolError), open_streams(engine.url, "/v1/completions"):
            engine.kill()
        engine.start()
        wait_for(engine.ready, "it to serve again", 240, engine.tail)
        assert load(engine.url) == 0

"""The engine simulator over real sockets: the protocol facts that the router relies on."""

import concurrent.futures
import json
import signal
import subprocess
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eldr.contract import (
    ELDR_KEY,
    HEADER_FULL,
    HEADER_LOAD,
    KV_KEY,
    LATE_DISCARDED,
    LATE_PREFILLED,
    METRIC_FED_TOKENS,
    METRIC_IN_FLIGHT,
    METRIC_REFUSED,
    PATH_LOAD,
    PULL_BEFORE_KEY,
    attempt_id,
    request_base,
)
from eldr.sim import text, traces
from eldr.wire import decode_counts
from tests.support.processes import ELDR, engine, wait_for

pytestmark = pytest.mark.process

FAST = ("--speed", "0.05")
REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture(scope="module")
def pair():
    with engine("prefill", *FAST, "--lease-seconds", "4") as p, engine("decode", *FAST) as d:
        yield p.url, d.url


def prefill(url: str, prompt: str, **headers) -> dict:
    body = {"model": "m", "prompt": prompt, "max_tokens": 1, KV_KEY: REMOTE}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()[KV_KEY]


def decode(url: str, prompt: str, params: dict | None, tokens: int = 8, **fields) -> httpx.Response:
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, KV_KEY: params, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, headers=fields.pop("headers", {}), timeout=120)


def said(url: str, prompt: str, params: dict | None) -> str:
    """Return the text of an answer of eight tokens."""
    return decode(url, prompt, params).json()["choices"][0]["text"]


def metric(url: str, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=120).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def late_pulls(url: str) -> dict[str, float]:
    name = "eldr_engine_late_pulls_total"
    return {outcome: metric(url, name, outcome=outcome) for outcome in (LATE_PREFILLED, LATE_DISCARDED)}


EXPIRED, USED = "vllm:nixl_num_kv_expired_reqs_total", "vllm:kv_cache_usage_perc"


@pytest.mark.slow
def test_two_phases_give_the_text_of_a_plain_server(pair):
    p, d = pair
    params = prefill(p, "hello")
    counts = decode_counts(params.pop(ELDR_KEY))
    captured = traces.load()
    assert counts.exact
    assert (counts.counts == captured.prefill_counts[captured.record_of("hello")]).all()
    answer = decode(d, "hello", params).json()
    assert answer["choices"][0]["text"] == text.completion("hello", 8)
    assert answer["usage"]["completion_tokens"] == 8
    assert said(d, "hello", None) == text.completion("hello", 8)


def test_a_second_pull_is_wrong_without_an_error(pair):
    p, d = pair
    params = prefill(p, "hello")
    assert said(d, "hello", params) == text.completion("hello", 8)
    assert said(d, "hello", params) != text.completion("hello", 8)


@pytest.mark.slow
def test_a_late_pull_is_wrong_and_counted(pair):
    p, d = pair
    before = metric(p, EXPIRED)
    params = prefill(p, "late")
    assert metric(p, USED) > 0
    wait_for(lambda: metric(p, EXPIRED) > before, "the lease to end")
    assert said(d, "late", params) != text.completion("late", 8)
    wait_for(lambda: metric(p, USED) == 0, "blocks freed")


@pytest.mark.slow
@pytest.mark.parametrize("expired", [False, True])
def test_after_its_deadline_nothing_is_pulled_and_the_text_is_right(pair, expired):
    p, d = pair
    before, leases = late_pulls(d), metric(p, EXPIRED)
    params = prefill(p, "too late") | {PULL_BEFORE_KEY: time.time()}
    if expired:
        wait_for(lambda: metric(p, EXPIRED) > leases, "the lease to end")
    assert said(d, "too late", params) == text.completion("too late", 8)
    assert late_pulls(d) == before | {LATE_PREFILLED: before[LATE_PREFILLED] + 1}
    wait_for(lambda: metric(p, USED) == 0, "its blocks to be free")
    assert metric(p, EXPIRED) == leases + expired


def test_a_late_pull_from_an_engine_that_is_gone_is_right_and_does_not_wait(pair):
    p, d = pair
    params = prefill(p, "gone") | {PULL_BEFORE_KEY: time.time(), "remote_port": 1}
    assert said(d, "gone", params) == text.completion("gone", 8)


@pytest.mark.slow
def test_an_engine_without_the_plug_in_pulls_at_any_time(pair):
    p, _ = pair
    params = prefill(p, "unheeded") | {PULL_BEFORE_KEY: time.time() - 1, "remote_request_id": "overwritten"}
    with engine("decode", *FAST, "--ignore-deadlines") as d:
        answer = decode(d.url, "unheeded", params)
        assert answer.json()["choices"][0]["text"] != text.completion("unheeded", 8)
        assert HEADER_LOAD not in answer.headers, "it reports no load either"
        assert httpx.get(f"{d.url}{PATH_LOAD}", timeout=120).status_code == 404


@pytest.mark.slow
def test_what_comes_after_the_deadline_is_a_failed_pull():
    with engine("prefill", *FAST, "--lease-seconds", "600") as p, engine("decode", *FAST) as d:
        before = late_pulls(d.url)
        for seconds in (3, 10, 30, 90):
            params = prefill(p.url, "slow")
            p.process.send_signal(signal.SIGSTOP)
            deadline = time.time() + seconds
            with concurrent.futures.ThreadPoolExecutor() as threads:
                answer = threads.submit(decode, d.url, "slow", params | {PULL_BEFORE_KEY: deadline})
                wait_for(lambda end=deadline: time.time() > end + 0.5, "the deadline to be over", 120)
                p.process.send_signal(signal.SIGCONT)
                status = answer.result().status_code
            if status != 200:  # the engine had the request before the deadline, which a busy machine can miss
                break
            before[LATE_PREFILLED] += 1
        assert status == 500
        assert late_pulls(d.url) == before | {LATE_DISCARDED: 1}


@pytest.mark.parametrize("value", [None, "soon", True, [1]])
def test_a_deadline_that_cannot_be_read_is_none(pair, value):
    p, d = pair
    before = late_pulls(d)
    params = prefill(p, "unreadable") | {PULL_BEFORE_KEY: value}
    assert said(d, "unreadable", params) == text.completion("unreadable", 8)
    assert late_pulls(d) == before


def test_unreachable_prefill_is_500_or_an_error_event(pair):
    p, d = pair
    params = prefill(p, "x") | {"remote_port": 1}
    assert decode(d, "x", params).status_code == 500
    streamed = decode(d, "x", params, stream=True)
    assert streamed.status_code == 200
    first = streamed.text.split("\n\n")[0]
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == 500
    assert decode(d, "x", prefill(p, "x") | {"remote_engine_id": "another"}).status_code == 500


@pytest.mark.slow
def test_engines_with_other_keys_exchange_no_kv(pair):
    p, _ = pair
    name = "vllm:nixl_num_failed_transfers_total"
    with engine("decode", *FAST, "--kv-key", "other") as d:
        before = metric(d.url, name)
        assert decode(d.url, "x", prefill(p, "x")).status_code == 500
        assert metric(d.url, name) == before + 1


def test_a_chat_whose_pull_fails_names_its_role_first(pair):
    p, d = pair
    messages = [{"role": "user", "content": "hi"}]
    params = prefill(p, "x") | {"remote_port": 1}
    body = {"model": "m", "messages": messages, "max_tokens": 4, "stream": True, KV_KEY: params}
    answer = httpx.post(f"{d}/v1/chat/completions", json=body, timeout=120)
    role, error, *rest = answer.text.split("\n\n")
    assert json.loads(role.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
    assert rest == ["data: [DONE]", ""]


def test_prompt_lists_and_n_give_one_choice_each(pair):
    _, d = pair
    answer = decode(d, ["a", "b"], None, n=2).json()
    assert [c["text"] for c in answer["choices"]] == [text.completion(x, 8) for x in ("a", "a", "b", "b")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "truncated"),
        (b'{"model": "m"}', 400, "prompt"),
        (b'{"model": "m", "prompt": ["a", 1]}', 400, "not a mixture"),
        (b'{"model": "m", "prompt": "x", "n": 1000000}', 400, "n`"),
        (b'{"model": "other", "prompt": "x"}', 404, "other"),
        (b'{"model": "m", "prompt": "x", "max_tokens": 9000}', 400, "maximum context length"),
    ],
)
def test_bad_requests_are_refused_as_vllm_does(pair, body, status, word):
    answer = httpx.post(f"{pair[1]}/v1/completions", content=body)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]


@pytest.mark.slow
def test_surface(pair):
    for url in pair:
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "m"
        assert httpx.get(f"{url}/load").json() == {"server_load": 0}
        assert "sim" in httpx.get(f"{url}/version").json()["version"]
        assert httpx.get(f"{url}/eldr/v1/activations?after=x").status_code == 400
        assert httpx.get(f"{url}/eldr/v1/activations?limit=0").status_code == 400


@pytest.mark.slow
def test_decode_activations_are_served_once_finished(pair):
    p, d = pair
    params = prefill(p, "act")
    upstream = attempt_id(request_base("0a0b0c0d", 7), 1)
    body = {"model": "m", "prompt": "act", "max_tokens": 9, KV_KEY: params}
    httpx.post(f"{d}/v1/completions", json=body, headers={"x-request-id": upstream}).raise_for_status()
    page = httpx.get(f"{d}/eldr/v1/activations", params={"prefix": "eldr-0a0b0c0d-"}).json()
    (record,) = page["records"]
    assert record["request_id"] == "eldr-0a0b0c0d-7"
    captured = traces.load()
    assert (decode_counts(record).counts == captured.decode_counts(captured.record_of("act"), 8)).all()


@pytest.mark.slow
def test_an_engine_that_drafts_says_the_same_in_fewer_steps():
    with engine("decode", *FAST, "--drafts", "3", "--accepted", "0.5") as d:
        body = {"model": "m", "prompt": "act", "max_tokens": 11, "stream": True}
        headers = {"x-request-id": attempt_id(request_base("0a0b0c0d", 8), 1)}
        lines = httpx.post(f"{d.url}/v1/completions", json=body, headers=headers).text.split("\n\n")
        chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
        assert "".join(chunk["text"] for chunk in chunks) == text.completion("act", 11)
        assert [chunk["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"], "2.5 tokens a step"
        assert metric(d.url, f"{METRIC_FED_TOKENS}_total") == 5 * 4
        assert metric(d.url, "vllm:generation_tokens_total") == 11
        assert metric(d.url, "vllm:inter_token_latency_seconds_count") == 4
        (record,) = httpx.get(f"{d.url}/eldr/v1/activations").json()["records"]
        captured = traces.load()
        expected = captured.decode_counts(captured.record_of("act"), 10)
        assert (decode_counts(record).counts == expected).all(), "rejected drafts are in no record"


@pytest.mark.slow
def test_client_disconnect_frees_the_batch(pair):
    _, d = pair
    for stream in (True, False):
        body = {"model": "m", "prompt": "x", "max_tokens": 8000, "stream": stream}
        with (
            pytest.raises(httpx.TimeoutException),
            httpx.stream(
                "POST", f"{d}/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.5)
            ) as answer,
        ):
            for _ in answer.iter_raw():
                raise httpx.ReadTimeout("seen a token")
        wait_for(
            lambda: metric(d, "vllm:num_requests_running") == 0, "the aborted request to leave the batch"
        )


@pytest.mark.slow
def test_requests_wait_for_kv_space_and_for_seats():
    small = ("--kv-blocks", "600", "--max-num-seqs", "2", "--ignore-deadlines")
    with engine("decode", "--speed", "0.02", *small) as d:
        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda i: decode(d.url, f"p{i}", None, tokens=200), range(6)))
        assert [a.json()["choices"][0]["text"] for a in answers] == [
            text.completion(f"p{i}", 200) for i in range(6)
        ]
        assert metric(d.url, "eldr_engine_batch_size_sum") <= 2 * metric(
            d.url, "eldr_engine_batch_size_count"
        )
        assert metric(d.url, USED) == 0


def test_who_grows_beyond_the_kv_space_loses_its_blocks_and_no_text():
    prompts = [f"{name} [eldr tokens 4700]" for name in "ab"]
    with engine("decode", *FAST, "--kv-blocks", "600") as d:
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(lambda prompt: decode(d.url, prompt, None, tokens=200), prompts))
        for prompt, got in zip(prompts, answers, strict=True):
            assert got.json()["choices"][0]["text"] == text.completion(prompt, 200)
            assert got.json()["usage"]["prompt_tokens"] == 4700
        assert metric(d.url, "vllm:num_preemptions_total") == 1
        assert metric(d.url, USED) == 0
        assert metric(d.url, "vllm:num_requests_running") == 0


def refusal(url: str) -> dict | None:
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "m", "prompt": "x", "max_tokens": 1}, timeout=120
    )
    return answer.json() if answer.status_code == 500 else None


@pytest.mark.slow
def test_sigterm_drains_within_the_shutdown_timeout():
    with engine("decode", "--shutdown-timeout", "60", "--speed", "10") as d:
        body = {"model": "m", "prompt": "x", "max_tokens": 60, "stream": True}
        with httpx.stream("POST", f"{d.url}/v1/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            next(lines)
            d.process.send_signal(signal.SIGTERM)
            late = wait_for(lambda: refusal(d.url), "new requests to be refused")
            assert "after shutdown" in late["error"]["message"]
            assert httpx.get(f"{d.url}/health", timeout=120).status_code == 200
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
        assert d.process.wait(30) == 0


@pytest.mark.slow
def test_impossible_capacity_is_refused_at_start():
    arguments = [ELDR, "engine-sim", "--role", "decode", "--kv-blocks", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "max_model_len: 8192 tokens do not fit 2 blocks" in done.stderr


def test_an_engine_refuses_what_is_above_its_limit_and_keeps_no_count():
    with (
        engine("decode", "--speed", "1", "--max-num-seqs", "3") as d,
        concurrent.futures.ThreadPoolExecutor(12) as pool,
    ):
        long = [pool.submit(decode, d.url, f"long {at}", None, 600) for at in range(3)]
        wait_for(lambda: metric(d.url, METRIC_IN_FLIGHT) == 3, "it to be full")
        refused = [pool.submit(decode, d.url, f"short {at}", None) for at in range(8)]
        for answer in (each.result() for each in refused):
            assert (answer.status_code, answer.headers[HEADER_FULL]) == (429, "3/3")
        assert [each.result().status_code for each in long] == [200] * 3
        assert httpx.get(f"{d.url}{PATH_LOAD}").json() == {"v": 1, "in_flight": 0, "limit": 3}
        answer = decode(d.url, "alone", None)
        assert (answer.status_code, answer.headers[HEADER_LOAD]) == (200, "1/3")
        assert metric(d.url, f"{METRIC_REFUSED}_total") == 8

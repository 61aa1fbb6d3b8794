"""What engines and clients do wrong, and that a prefill result is never used twice."""

import asyncio
import json

import httpx
import pytest

from eldr_router.placement.table import Table
from tests.fakes.engines import (
    CLIENT_ERROR,
    TOKENS,
    answer,
    close,
    decode,
    dies_after,
    error_event,
    hang,
    pieces,
    reset,
    token_event,
)
from tests.router.conftest import QUICK, until


def retries(router, leg, cause):
    """Attempts given up; a cut is "stale" where a probe has left its connection in the pool."""
    causes = (cause, "stale") if cause == "reset" else (cause,)
    return sum(router.counter("retries", leg=leg, cause=each) for each in causes)


OPENING = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


@pytest.mark.usefixtures("long_ejections")
async def test_a_refused_decode_connection_passes_the_same_result_on(start):
    async with start("p0", "d0", "d1", "d2") as router:
        await router["d0"].refuse()
        await router["d1"].refuse()
        for _ in range(6):
            got = await router.post(stream=True)
            assert got.status_code == 200
            assert got.headers["x-eldr-decode"] == "d2"
        assert len(router["p0"].requests) == 6, "no prompt was prefilled again"
        assert router.counter("retries", leg="decode", cause="refused") >= 1
        state = await router.state()
        assert [e["healthy"] for e in state["decode"]] == [False, False, True]


async def test_all_decode_engines_refuse(start):
    async with start("p0", "d0", "d1") as router:
        await router["d0"].refuse()
        await router["d1"].refuse()
        got = await router.post()
        assert got.status_code == 502
        assert "no decode engine accepts connections" in got.json()["error"]["message"]
        assert len(router["p0"].requests) == 1


async def test_a_result_is_freed_by_an_engine_that_answers(start):
    async with start("p0", "d0", "d1") as router:
        router.play(answer(400, CLIENT_ERROR))
        await router["d0"].refuse()
        assert (await router.post()).status_code == 400
        await until(lambda: router.counter("freed_results") == 1, "it to be freed")
        assert len(router["d1"].freed) == 1


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_only_a_rejection_by_vllm_frees_a_result(start, status):
    async with start("p0", "d0", "d1") as router:
        for name in ("d0", "d1"):
            router[name].script.append(answer(400, CLIENT_ERROR))
            router[name].rejects = status
        assert (await router.post()).status_code == 400
        await until(lambda: router["d0"].freed and router["d1"].freed, "both to be asked")
        for name in ("d0", "d1"):
            router[name].rejects = 400
            router[name].script.clear()
            router[name].script.append(answer(400, CLIENT_ERROR))
        assert (await router.post()).status_code == 400
        await until(lambda: router.counter("freed_results") == 1, "the second to be freed")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (reset, "reset"),
        (close, "reset"),
        (answer(500, {"error": {"message": "x", "code": 500}}), "status"),
        (answer(503, {}), "status"),
        (hang, "timeout"),
        (pieces(b"nonsense\r\n\r\n"), "protocol"),
        (pieces(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"), "protocol"),
    ],
)
async def test_a_failed_decode_is_prefilled_again(start, fault, cause, stream):
    async with start("p0", "d0", "d1", settings=QUICK) as router:
        router.play(fault)
        got = await router.post(stream=stream)
        assert got.status_code == 200
        assert all(token in got.text for token in TOKENS)
        assert retries(router, "decode", cause) == 2
        assert len(router["p0"].requests) == 3
        assert len(router["d0"].requests) + len(router["d1"].requests) == 3
        router.pulled_once()
        refused = 2 if cause == "status" else 0  # what others may still read stays
        await until(lambda: router.counter("freed_results") == refused, "what was refused to be freed")


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (json.dumps({"error": {"message": "Internal server error", "code": 500}}), "error_event"),
        (json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}), "aborted"),
        ("[DONE]", "aborted"),
    ],
)
async def test_an_opening_chunk_does_not_hide_a_failure(start, ending, cause):
    """vLLM names the role of a chat first, even when the pull failed or the engine is shutting down."""

    async def opens_then_fails(exchange):
        await exchange.stream_head()
        await exchange.event(json.dumps(OPENING))
        await exchange.event(ending)
        await exchange.stream_end()

    async with start("p0", "d0", "d1") as router:
        router.play(opens_then_fails)
        got = await router.post("/v1/chat/completions", stream=True, messages=[])
        assert got.status_code == 200
        assert all(token in got.text for token in TOKENS)
        assert "assistant" not in got.text, "nothing of the failed attempts was forwarded"
        assert router.counter("retries", leg="decode", cause=cause) >= 1


@pytest.mark.parametrize("text", ["", "half an"])
async def test_a_whole_answer_that_was_cut_short_is_asked_for_again(start, text):
    cut_short = {"choices": [{"index": 0, "text": text, "finish_reason": "abort"}]}
    async with start("p0", "d0", "d1") as router:
        router.play(answer(200, cut_short))
        got = await router.post()
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)
        assert router.counter("retries", leg="decode", cause="aborted") == 2


async def test_a_whole_answer_that_breaks_is_asked_for_again(start):
    async with start("p0", "d0", "d1") as router:
        half = pieces(b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", close=True)
        router.play(half)
        got = await router.post()
        assert got.json()["choices"][0]["text"] == "".join(TOKENS)
        assert retries(router, "decode", "reset") == 2


async def test_an_aborted_prefill_goes_to_another_engine(start):
    async with start("p0", "p1", "d0") as router:
        ended = answer(200, {"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})
        router["p0"].script.append(ended)
        for i in range(8):
            assert (await router.post(prompt=f"prompt {i}")).status_code == 200
        assert router.counter("retries", leg="prefill", cause="aborted") == 1
        assert len(router["d0"].blocks) == 8, "none was sent whole"


@pytest.mark.parametrize("fault", [error_event, answer(500, {})])
async def test_after_a_failed_pull_the_prompt_is_prefilled_elsewhere(start, fault):
    """The fault may lie with the prefill engine: one whose side channel is unreachable would fail every attempt."""
    async with start("p0", "p1", "d0") as router:
        router["d0"].script.append(fault)
        assert (await router.post(stream=True)).status_code == 200
        assert [len(router[name].requests) for name in ("p0", "p1")] == [1, 1]


async def test_an_error_event_that_blames_the_client_is_passed_on(start):
    async with start("p0", "d0") as router:

        async def refuse(exchange):
            await exchange.stream_head()
            await exchange.event(json.dumps(CLIENT_ERROR))
            await exchange.stream_end()

        router["d0"].script.append(refuse)
        got = await router.post(stream=True)
        assert "prompt too long" in got.text
        assert len(router["d0"].requests) == 1


@pytest.mark.parametrize("leg", ["p0", "d0"])
@pytest.mark.parametrize("status", [400, 404, 422])
async def test_client_errors_pass_unchanged_and_are_not_retried(start, leg, status):
    async with start("p0", "d0") as router:
        router[leg].script.append(answer(status, CLIENT_ERROR, "x-engine: 1\r\n"))
        got = await router.post(headers={"x-request-id": "mine"})
        assert (got.status_code, got.json()) == (status, CLIENT_ERROR)
        assert got.headers["x-engine"] == "1"
        assert got.headers["x-request-id"] == "mine"
        assert len(router["p0"].requests) == 1
        assert len(router["d0"].requests) == (leg == "d0")
        assert router.counter("requests", outcome="engine_error") == 1
        await until(lambda: len(router["d0"].freed) == (leg == "d0"), "what was refused to be freed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (reset, "reset"),
        (answer(500, {}), "status"),
        (hang, "timeout"),
        (answer(200, []), "protocol"),
        (pieces(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnot"), "protocol"),
        (pieces(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nnot", close=True), "reset"),
    ],
)
async def test_a_failed_prefill_goes_to_another_engine(start, fault, cause):
    async with start("p0", "p1", "d0", settings=QUICK) as router:
        router.play(fault, at=("p0", "p1"))
        got = await router.post()
        assert got.status_code == 200
        assert retries(router, "prefill", cause) == 2
        counts = sorted(len(router[name].requests) for name in ("p0", "p1"))
        assert counts == [1, 2], "the second attempt went to the other engine"
        assert len(router["d0"].requests) == 1


async def test_a_refused_prefill_connection_goes_to_another_engine(start):
    async with start("p0", "p1", "d0") as router:
        await router["p0"].refuse()
        for i in range(8):
            assert (await router.post(prompt=f"prompt {i}")).status_code == 200
        assert len(router["p1"].requests) == 8


async def test_when_every_prefill_engine_refuses_decode_engines_do_it_all(start):
    async with start("p0", "d0") as router:
        await router["p0"].refuse()
        assert (await router.post()).status_code == 200
        assert router.counter("whole", reason="prefill_refused") == 1
        assert "kv_transfer_params" not in router["d0"].requests[0].body


@pytest.mark.parametrize("leg", ["p0", "d0"])
async def test_attempts_are_bounded(start, leg):
    async with start("p0", "d0") as router:
        router[leg].script.extend([reset] * 9)
        got = await router.post(stream=True)
        assert got.status_code == 502
        assert "3 attempts" in got.json()["error"]["message"]
        assert len(router[leg].requests) == 3
        router[leg].script.clear()


@pytest.mark.parametrize("leg", ["p", "d"])
async def test_engines_that_fail_everything_do_not_use_up_attempts(start, leg):
    """Five of six do; only the requests that find out may see that."""
    other = {"p": "d0", "d": "p0"}[leg]
    async with start(*(f"{leg}{i}" for i in range(6)), other) as router:
        for i in range(5):
            router[f"{leg}{i}"].script.extend([reset] * 99)
        statuses = [(await router.post(prompt=f"prompt {i}")).status_code for i in range(40)]
        for i in range(5):
            router[f"{leg}{i}"].script.clear()
        assert set(statuses) <= {200, 502}
        assert statuses.count(502) <= 2, "each of these met three engines that had been well"


async def test_a_connection_reset_after_reuse_is_not_taken_for_a_refusal(start):
    """The engine may have pulled the blocks before it reset the pooled connection."""
    async with start("p0", "d0", "d1") as router:
        while not (router["d0"].requests and router["d1"].requests):
            await router.post()
        await until(lambda: len(router.app.services.pool) == 3, "connections to be pooled")
        before = len(router["p0"].requests)
        router.play(reset)
        assert (await router.post()).status_code == 200
        assert router.counter("retries", leg="decode", cause="stale") >= 1
        assert len(router["p0"].requests) >= before + 2
        assert router["d0"].accepted + router["d1"].accepted >= 3


async def test_a_result_near_the_end_of_its_lease_is_thrown_away(start, monkeypatch):
    async with start("p0", "d0") as router:
        monkeypatch.setattr(Table, "usable_seconds", property(lambda self: -1.0))
        assert (await router.post()).status_code == 200
        assert router.counter("expired_results") == 2
        assert not router["d0"].blocks, "an old result was sent to a decode engine"
        monkeypatch.undo()
        assert (await router.post()).status_code == 200


@pytest.mark.slow
async def test_a_stream_that_has_opened_in_time_may_take_as_long_as_it_likes(start):
    """The opening chunk of a chat comes after the pull; a model that thinks in secret says nothing for long."""
    release = asyncio.Event()

    async def thinks(exchange):
        await exchange.stream_head()
        await exchange.event(json.dumps(OPENING))
        await release.wait()
        await exchange.event(json.dumps({"choices": [{"index": 0, "delta": {"content": "so"}}]}))
        await exchange.stream_end()

    async with start("p0", "d0", lease_seconds=2.0) as router:
        router["d0"].script.append(thinks)
        asked = asyncio.ensure_future(router.post(stream=True))
        await until(lambda: router["d0"].requests, "the stream to begin")
        # longer than the result may be used: that nothing happens cannot be waited for otherwise
        await asyncio.sleep(1.5)
        assert not asked.done()
        release.set()
        assert "so" in (await asked).text
        assert not router.counter("expired_results")
        assert len(router["p0"].requests) == 1


@pytest.mark.slow
async def test_a_stream_whose_first_token_comes_after_the_lease_is_thrown_away(start):
    """A request that waited at a full engine for so long may have pulled what others had overwritten."""

    async def waits(exchange):
        await exchange.stream_head()
        await hang(exchange)

    async with start("p0", "d0", "d1", lease_seconds=5.0) as router:
        router.play(waits)
        got = await router.post(stream=True)
        assert "[DONE]" in got.text
        assert router.counter("expired_results") == router.counter("retries", leg="decode", cause="expired")
        assert 1 <= router.counter("expired_results") <= 2
        assert len(router["p0"].requests) == 1 + router.counter("expired_results"), "prefilled again"
        await until(
            lambda: not router["d0"].hanging and not router["d1"].hanging, "what waited to be aborted"
        )


async def test_usable_seconds():
    from eldr_router.placement.table import RoutingDocument, make_table

    def usable(lease):
        table = make_table(RoutingDocument(lease_seconds=lease), epoch=0, active=None, centroids=None)
        return table.usable_seconds

    assert usable(300.0) == pytest.approx(270.0)
    assert usable(5.0) == pytest.approx(4.0)


@pytest.mark.slow
async def test_engines_that_fail_at_random_never_leak_a_lease_or_reuse_a_result(start):
    """A soak: every fault at once, many clients, some of whom leave."""
    import random

    rng = random.Random(7)
    faults = [reset, close, error_event, answer(500, {}), dies_after(1), hang, pieces(b"HTTP/1.1 200")]
    patient = QUICK | {
        "prefill_timeout_seconds": 3.0,
        "decode_idle_timeout_seconds": 3.0,
    }  # for a slow machine
    async with start("p0", "p1", "d0", "d1", "d2", settings=patient) as router:
        for engine in router.engines.values():
            engine.release.set()
            engine.script.extend(rng.choice([*faults, *[None] * 7]) or _behave for _ in range(60))

        async def one(i: int) -> str:
            try:
                got = await asyncio.wait_for(
                    router.post(prompt=f"{i}", stream=i % 3 > 0), 0.4 if i % 7 == 0 else 60
                )
            except TimeoutError:
                return "left"
            except httpx.RemoteProtocolError:
                return "cut"
            if got.status_code == 200 and "[DONE]" in got.text:
                assert [
                    json.loads(line[6:]) for line in got.text.split("\n") if line.startswith("data: {")
                ] == [json.loads(token_event(text)) for text in TOKENS]
            return str(got.status_code)

        outcomes = await asyncio.gather(*(one(i) for i in range(120)))
        assert outcomes.count("200") > 60
        await until(router.idle, "every lease to return")
        router.pulled_once()
        for engine in router.engines.values():
            engine.script.clear()


async def _behave(exchange):
    from tests.fakes.engines import prefill

    await (prefill if exchange.engine.role == "prefill" else decode)(exchange)

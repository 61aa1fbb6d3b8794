"""``/v1/responses`` and ``/v1/messages`` before scripted engines: split like chats, and as careful with a pull."""

import asyncio
import json

import pytest

from eldr_router.api.paths import ANY_ENGINE, MESSAGES, RESPONSES
from tests.fakes.engines import answer, reset

LEASE = 2.0  # usable for one second
SAID = {"role": "user", "content": "hi"}
BODY = {RESPONSES: {"input": "hi"}, MESSAGES: {"messages": [SAID], "max_tokens": 5000}}
ANSWER = {"id": "r", "status": "completed", "output": ["yes"], "usage": {"output_tokens": 1}}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
EARLY = {
    RESPONSES: [{"type": "response.created", "response": {"status": "in_progress", "output": []}}],
    MESSAGES: [{"type": "ping"}],
}
REST = {
    RESPONSES: [
        {"type": "response.output_item.added", "item": {}},
        {"type": "response.output_text.delta", "delta": "yes"},
        {"type": "response.completed", "response": ANSWER},
    ],
    MESSAGES: [
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ],
}
WHOLE = {
    RESPONSES: ANSWER,
    MESSAGES: {**MESSAGE, "content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn", "usage": {"output_tokens": 1}},
}  # fmt: skip
BOTH = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])


async def named(exchange, event):
    payload = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    await exchange.send(b"%x\r\n%b\r\n" % (len(payload), payload))


def speaks(path, *, silence=0.0, upto=None):
    """Stream as an engine does, with a silence before the first token."""

    async def behaviour(exchange):
        await exchange.stream_head()
        for event in EARLY[path]:
            await named(exchange, event)
        await asyncio.sleep(silence)
        for event in REST[path][:upto]:
            await named(exchange, event)
        if upto is None:
            await exchange.send(b"0\r\n\r\n")
        else:
            await exchange.engine.released(exchange)
            exchange.reset()

    return behaviour


async def ask(router, path, **fields):
    body = {"model": "m", **BODY[path], **fields}
    return await router.client.post(router.url + path, json=body)


@BOTH
async def test_a_stream_goes_through_both_engines(start, path):
    async with start("p0", "d0") as router:
        router["d0"].script.append(speaks(path))
        got = await ask(router, path, stream=True)
        assert got.status_code == 200
        said = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: ")]
        assert said == EARLY[path] + REST[path]
        (first,), (second,) = router["p0"].requests, router["d0"].requests
        assert first.path == second.path == path
        assert first.body["kv_transfer_params"]["do_remote_decode"] is True
        assert second.body["kv_transfer_params"]["do_remote_prefill"] is True
        assert router.counter("whole") == 0
        if path == RESPONSES:
            assert second.body["request_id"] == f"resp-{second.id}"


@BOTH
async def test_a_whole_answer_is_passed_on(start, path):
    async with start("p0", "d0") as router:
        router["d0"].script.append(answer(200, WHOLE[path]))
        got = await ask(router, path)
        assert got.json() == WHOLE[path]
        assert "stream" not in router["d0"].requests[0].body


@pytest.mark.slow
@BOTH
async def test_what_an_engine_says_before_its_pull_does_not_show_a_pull(start, path):
    """Else a late pull could reach a client: the words that open a response come before the engine has begun."""
    async with start("p0", "d0", "d1", lease_seconds=LEASE) as router:
        router.play(speaks(path, silence=1.5), speaks(path))
        got = await ask(router, path, stream=True)
        assert got.status_code == 200
        assert "yes" in got.text
        assert router.counter("retries", leg="decode", cause="expired") == 2


@BOTH
async def test_an_engine_that_ends_before_its_first_token_is_replaced(start, path):
    cut = {
        RESPONSES: [{"type": "response.completed", "response": {**ANSWER, "output": [], "usage": {"output_tokens": 0}}}],
        MESSAGES: [REST[MESSAGES][0], {"type": "message_delta", "delta": {"stop_reason": None}}, REST[MESSAGES][-1]],
    }[path]  # fmt: skip

    async def draining(exchange):
        await exchange.stream_head()
        for event in EARLY[path] + cut:
            await named(exchange, event)
        await exchange.send(b"0\r\n\r\n")

    async with start("p0", "d0", "d1") as router:
        router.play(draining, speaks(path))
        got = await ask(router, path, stream=True)
        assert "yes" in got.text
        assert router.counter("retries", leg="decode", cause="aborted") == 2


@BOTH
async def test_a_failed_pull_is_tried_again(start, path):
    """As in vLLM: a message has an event for it, and a response is cut. Either engine may be to blame."""

    async def failing(exchange):
        await exchange.stream_head()
        for event in EARLY[path]:
            await named(exchange, event)
        if path == RESPONSES:
            exchange.writer.close()
            return
        await named(exchange, {"type": "error", "error": {"type": "internal_error", "message": "x"}})
        await exchange.send(b"0\r\n\r\n")

    async with start("p0", "d0", "d1") as router:
        router.play(failing, speaks(path))
        assert "yes" in (await ask(router, path, stream=True)).text
        assert router.counter("retries", leg="decode", cause="error_event") >= 1


@BOTH
async def test_a_broken_stream_ends_with_an_error_that_clients_know(start, path):
    async with start("p0", "d0") as router:
        router["d0"].script.append(speaks(path, upto=2))
        router["d0"].release.set()
        got = await ask(router, path, stream=True)
        *_, name, data = [line for line in got.text.splitlines() if line]
        assert name == "event: error"
        said = json.loads(data.removeprefix("data: "))
        assert (said["type"], said["error"]["code"]) == ("error", "upstream_failed")


async def test_stateful_responses_are_refused_before_any_engine_is_asked(start):
    async with start("p0", "d0") as router:
        got = await ask(router, RESPONSES, previous_response_id="resp_1")
        error = got.json()["error"]
        assert (got.status_code, error["param"], error["code"]) == (400, "previous_response_id", "stateful")
        assert "input" in error["message"]
        assert router.counter("requests", outcome="stateful") == 1
        for path in (
            "/v1/responses/resp_1",
            "/v1/responses/resp_1/cancel",
            "/inference/v1/generate",
            "/invocations",
        ):
            assert (await router.client.post(router.url + path, json={})).status_code == 404
        assert not router["p0"].requests + router["d0"].requests


@BOTH
async def test_errors_have_the_shape_of_both_families(start, path):
    async with start("p0", "d0") as router:
        got = await ask(router, path, kv_transfer_params={})
        assert got.status_code == 400
        assert got.json()["type"] == "error"
        assert {"message", "type", "param", "code"} == got.json()["error"].keys()


@pytest.mark.parametrize(
    "path", [path for path in ANY_ENGINE if path != "/v1/models"]
)  # that one is not scripted
async def test_what_any_engine_answers_goes_to_another_if_one_fails(start, path):
    async with start("p0", "d0") as router:
        for failure in (reset, answer(500, {}), answer(429, {}), answer(503, {})):
            for engine in router.engines.values():
                engine.script.clear()
            router["p0"].script.append(failure)
            router["d0"].script.append(answer(200, {"by": "d0"}))
            got = await router.client.request(ANY_ENGINE[path], router.url + path)
            assert (got.status_code, got.json()) == (200, {"by": "d0"})


def asked(engine, path):
    """Requests without those of pollers, which a slow test may see."""
    return sum(seen.path == path for seen in engine.seen)


async def test_if_all_engines_fail_the_last_answer_is_passed_on(start):
    async with start("p0", "d0") as router:
        for engine in router.engines.values():
            engine.script.append(answer(501, {"error": "no such model"}))
        got = await router.client.post(f"{router.url}/v1/embeddings", json={})
        assert (got.status_code, got.json()) == (501, {"error": "no such model"})
        assert [asked(engine, "/v1/embeddings") for engine in router.engines.values()] == [1, 1]


async def test_a_client_s_mistake_is_not_tried_again(start):
    async with start("p0", "d0") as router:
        for engine in router.engines.values():
            engine.script.append(answer(404, {"error": "no"}))
        assert (await router.client.post(f"{router.url}/score", json={})).status_code == 404
        assert sum(asked(engine, "/score") for engine in router.engines.values()) == 1

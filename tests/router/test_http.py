"""The client port's HTTP, on raw sockets."""

import asyncio
import json

import pytest

from eldr_router.net import inbound
from tests.fakes.engines import TOKENS, answer, dies_after, hang, slow
from tests.router.conftest import DEADLINE, until

BODY = b'{"model":"m","prompt":"x"}'
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def late(release):
    """Answer whole, only after the release."""

    async def behaviour(exchange):
        await release.wait()
        await answer(200, {"choices": [{"text": "".join(TOKENS)}]})(exchange)

    return behaviour


def post(body=BODY, *headers, stream=False):
    body = body[:-1] + b',"stream":true}' if stream else body
    lines = [b"POST /v1/completions HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


async def response(reader):
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
    first, *lines = head.decode().split("\r\n")[:-2]
    headers = dict(line.split(": ", 1) for line in lines)
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", 0))), DEADLINE)
    return int(first.split(" ")[1]), headers, body


async def test_a_pipeline_is_answered_in_order(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(post() + HEALTH + post(b"{") + HEALTH)
        answers = [await response(reader) for _ in range(4)]
        assert [status for status, _, _ in answers] == [200, 200, 400, 200]
        assert b"choices" in answers[0][2]
        assert answers[1][2] == b'{"status":"ok"}'
        writer.close()


async def test_a_large_pipeline_is_held_back_and_then_served(start):
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        reader, writer = await router.connect()
        writer.write(post(b'{"model":"m","prompt":"x","stream":true}'))
        await reader.readuntil(b"\r\n\r\n")
        count = 4000
        writer.write(HEALTH * count)
        (client,) = router.app.clients.connections
        await until(lambda: len(client._backlog) > 65536, "the backlog to fill")
        release.set()
        await reader.readuntil(b"0\r\n\r\n")
        for _ in range(count):
            assert (await response(reader))[0] == 200
        writer.close()


async def test_expect_100_continue(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        request = post(BODY, b"expect: 100-continue")
        head, body = request[: -len(BODY)], request[-len(BODY) :]
        for _ in range(2):
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await response(reader))[0] == 200
        assert "expect" not in router["d0"].requests[0].headers
        writer.close()


async def test_expect_waits_for_the_response_before_it(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(post() + post(BODY, b"expect: 100-continue")[: -len(BODY)])
        assert (await response(reader))[0] == 200
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert (await response(reader))[0] == 200
        writer.close()


async def test_chunked_request_bodies(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in BODY:
            writer.write(b"1\r\n%c\r\n" % byte)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        assert (await response(reader))[0] == 200
        seen = router["d0"].requests[0]
        assert "transfer-encoding" not in seen.headers
        assert seen.body["prompt"] == "x"
        writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413, "body_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431, "head_too_large"),
    ],
)
async def test_refusals_close_the_connection_after_the_answer(start, request_bytes, status, code):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(HEALTH + request_bytes + b"x" * 1000)
        assert (await response(reader))[0] == 200
        got, headers, body = await response(reader)
        assert (got, headers["connection"]) == (status, "close")
        assert json.loads(body)["error"]["code"] == code
        assert await reader.read() == b""
        writer.close()
        await until(lambda: not router.app.clients.connections, "the connection to close")


async def test_a_large_upload_gets_its_413(start):
    """The answer must not be destroyed by a reset because of bytes that nobody reads."""
    async with start("p0", "d0", settings={"max_body": 1000}) as router:
        reader, writer = await router.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(50):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await asyncio.sleep(0)
        assert (await response(reader))[0] == 413
        writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_half_closed_client_gets_its_answer(start, stream):
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release) if stream else late(release))
        reader, writer = await router.connect()
        writer.write(post(stream=stream))
        writer.write_eof()
        await until(lambda: router["d0"].requests, "the request to arrive")
        await asyncio.sleep(0.3)  # longer than it takes to find out that a client is gone
        release.set()
        got = (await asyncio.wait_for(reader.read(), DEADLINE)).split(b"HTTP/1.1 ")
        assert all(interim.startswith(b"100 ") for interim in got[1:-1])
        assert got[-1].startswith(b"200 OK")
        assert TOKENS[-1].encode() in got[-1]
        writer.close()


@pytest.mark.slow
async def test_idle_clients_are_closed(start):
    async with start("p0", "d0", settings={"client_idle_timeout_seconds": 0.01}) as router:
        reader, writer = await router.connect()
        assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
        writer.close()


async def test_idle_clients_outlive_those_of_proxies_and_make_room_for_new_ones(start):
    """Proxies keep theirs for up to 600 s, and use one again in the moment in which the router would close it."""
    async with start("p0", "d0") as router:
        server = router.app.clients
        assert server.idle_timeout > 600
        server.max_connections = 2
        first, second = await router.connect(), await router.connect()
        loop = asyncio.get_running_loop()
        for reader, writer in (second, first):
            writer.write(HEALTH)
            assert (await response(reader))[0] == 200
            answered = loop.time()
            await until(lambda since=answered: loop.time() > since, "the loop's clock to move")
        third = await router.connect()
        third[1].write(HEALTH)
        assert (await response(third[0]))[0] == 200
        assert await asyncio.wait_for(second[0].read(), DEADLINE) == b"", "it has rested longest"
        first[1].write(HEALTH)
        assert (await response(first[0]))[0] == 200
        for _, writer in (first, second, third):
            writer.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_compressed_body_gets_415(start, path, encoding):
    async with start("p0", "d0") as router:
        body = {"model": "m", "messages": [], "input": "x", "prompt": "x"}
        got = await router.client.post(router.url + path, json=body, headers={"content-encoding": encoding})
        assert got.status_code == 415
        assert f"Content-Encoding: {encoding}" in got.json()["error"]["message"]
        assert router["p0"].requests == router["d0"].requests == []
        assert (await router.post(headers={"content-encoding": "Identity"})).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"GET / HTTP/1.1\r\nho", post()[:-3]])
async def test_an_upload_that_falls_silent_gets_its_408(start, monkeypatch, beginning):
    monkeypatch.setattr(inbound, "_SILENT_SECONDS", 0.0)
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(HEALTH + beginning)
        assert (await response(reader))[0] == 200
        status, headers, body = await response(reader)
        assert (status, headers["connection"]) == (408, "close")
        assert json.loads(body)["error"]["code"] == "upload_timeout"
        assert router.app.clients.budget.held == 0
        assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
        writer.close()


@pytest.mark.slow
async def test_a_slow_upload_is_served_as_long_as_something_comes(start, monkeypatch):
    monkeypatch.setattr(inbound, "_SILENT_SECONDS", 1.5)
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        data = post()
        writer.write(data[:-10])
        for byte in data[-10:]:
            await asyncio.sleep(0.4)
            writer.write(b"%c" % byte)
        assert (await response(reader))[0] == 200
        writer.close()


@pytest.mark.slow
async def test_where_memory_is_short_old_uploads_make_room(start, monkeypatch):
    """A byte now and then would hold it for ever."""
    monkeypatch.setattr(inbound, "_LONG_SECONDS", 0.5)
    async with start("p0", "d0", settings={"max_body": 1 << 20, "max_bodies": 1 << 20}) as router:
        old, old_writer = await router.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (1 << 20)
        old_writer.write(head + b" " * ((1 << 20) - 8))
        await until(lambda: router.app.clients.budget.held > 1 << 19, "the upload to arrive")
        await asyncio.sleep(1.6)
        assert router.app.clients.budget.held, "nobody needs the room"
        assert (await router.post()).status_code == 503
        assert (await response(old))[0] == 408
        await until(lambda: not router.app.clients.budget.held, "the room")
        assert (await router.post()).status_code == 200
        old_writer.close()


async def test_a_bug_in_a_handler_is_a_500_and_not_a_hang(start, monkeypatch, caplog):
    async with start("p0", "d0") as router:
        monkeypatch.setattr(router.app.services.placer, "place", lambda *_, **__: 1 / 0)
        got = await router.post()
        assert got.status_code == 500
        assert got.json()["error"]["code"] == "internal"
        assert "ZeroDivisionError" in caplog.text
        assert router.counter("requests", outcome="internal") == 1


async def test_a_half_closed_client_gets_all_the_answers_of_its_pipeline(start):
    async with start("p0", "d0") as router:
        for data, count in (
            (post() + HEALTH + post(stream=True), 3),
            (HEALTH * 5, 5),
            (HEALTH + post()[:-3], 1),
        ):
            reader, writer = await router.connect()
            writer.write(data)
            writer.write_eof()
            got = await asyncio.wait_for(reader.read(), DEADLINE)
            assert got.count(b"HTTP/1.1 200") == count
            writer.close()
        await until(lambda: not router.app.clients.connections, "nobody to be left")


@pytest.mark.slow
async def test_a_client_that_leaves_behind_a_long_pipeline_is_noticed(start):
    """Where reading is paused, the transport sees neither its end nor its reset."""
    async with start("p0", "d0") as router:
        router["d0"].script.append(hang)
        _, writer = await router.connect()
        writer.write(post(stream=True))
        await until(lambda: router["d0"].requests, "the request to arrive")
        writer.write(HEALTH * 10_000)
        (connection,) = router.app.clients.connections
        await until(lambda: len(connection._backlog) > 1 << 16, "reading to be paused")
        writer.transport.abort()
        await until(router.idle, "the lease to return")
        await until(lambda: router["d0"].hanging == 0, "the engine to be told")


@pytest.mark.slow
async def test_a_drain_waits_for_answers_that_have_not_gone_out(start):
    size = 12 << 20  # more than sockets hold
    async with start("d0") as router:
        router["d0"].script.append(answer(200, "x" * size))
        reader, writer = await router.connect()
        writer.transport.pause_reading()
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        await until(lambda: router.app.clients.budget.held >= size, "the answer to be written")
        drain = asyncio.ensure_future(router.app.drain())
        await asyncio.sleep(0.3)
        assert not drain.done(), "the client has not got its answer"
        writer.transport.resume_reading()
        got = await asyncio.wait_for(reader.read(), DEADLINE)
        assert len(got) > size
        await asyncio.wait_for(drain, DEADLINE)
        writer.close()


@pytest.mark.parametrize("count", [1, 10_000])
async def test_a_pipeline_behind_a_broken_stream_destroys_no_error_event(start, count):
    """Bytes that nobody has read when a connection is closed reset it."""
    async with start("p0", "d0") as router:
        router["d0"].script.append(dies_after(1))
        reader, writer = await router.connect()
        writer.write(post(stream=True))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEALTH * count)
        (client,) = router.app.clients.connections
        await until(lambda: client._backlog, "the pipeline to arrive")
        router["d0"].release.set()
        got = await asyncio.wait_for(reader.read(), DEADLINE)
        assert b"upstream_failed" in got
        assert got.endswith(b"0\r\n\r\n"), "the pipeline is not answered, but nothing is cut"
        writer.close()
        await until(lambda: not router.app.clients.connections, "the connection to end")


async def test_a_pipeline_behind_the_last_request_destroys_no_answer(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(post(BODY, b"connection: close") + HEALTH * 10_000)
        got = await asyncio.wait_for(reader.read(), DEADLINE)
        assert got.count(b"HTTP/1.1 ") == 1
        assert b"choices" in got
        writer.close()
        await until(lambda: not router.app.clients.connections, "the connection to end")

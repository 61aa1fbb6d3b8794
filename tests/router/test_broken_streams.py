"""What ends a stream after its first byte: engines that die or fall silent, clients that leave or do not read."""

import asyncio
import contextlib
import json

import httpx
import pytest

from tests.fakes.engines import (
    TOKENS,
    dies_after,
    hang,
    pieces,
    slow,
    token_event,
)
from tests.router.conftest import DEADLINE, QUICK, until
from tests.router.test_http import post


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("torn", [b"", b'40\r\ndata: {"choices"', b"4", b"4\r\nabcd", b"a\r\ndata: x\n\n\r"])
async def test_death_after_the_first_byte_ends_with_an_error_event(start, tokens, torn):
    async with start("p0", "d0", "d1") as router:
        router.play(dies_after(tokens, torn))
        async with router.stream() as got:
            lines = []
            async for line in got.aiter_lines():  # a torn chunked body would raise here
                if line:
                    lines.append(line)
                if line and len(lines) == tokens:
                    for engine in (router["d0"], router["d1"]):
                        engine.release.set()
        assert lines[:tokens] == [f"data: {token_event(text)}" for text in TOKENS[:tokens]]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "upstream_failed"
        assert "[DONE]" not in "".join(lines)
        assert len(lines) == tokens + 1
        assert len(router["p0"].requests) == 1, "nothing is retried after the first byte"
        assert router.counter("requests", outcome="broken_stream") == 1
        for engine in (router["d0"], router["d1"]):
            engine.script.clear()
        assert (await router.post()).status_code == 200


async def test_a_broken_stream_has_a_place_in_every_histogram(start):
    """Else an engine that breaks its longest answers would look fast."""
    async with start("p0", "d0") as router:
        assert (await router.post()).status_code == 200
        router["d0"].script.append(dies_after(1))
        router["d0"].release.set()
        await router.post(stream=True)
        assert router.counter("requests", outcome="broken_stream") == 1
        text = router.app.services.telemetry.metrics.exposition().decode()
        for what in ("prefill", "first_byte", "request"):
            assert f"eldr_router_{what}_seconds_count 2.0" in text


async def test_death_inside_a_long_body_of_known_length_cuts_the_client(start):
    """One that is short enough to be held back is asked for again instead."""
    async with start("p0", "d0") as router:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n"
        router["d0"].script.append(pieces(head, b'{"half":', close=True))
        with pytest.raises(httpx.RemoteProtocolError):
            await router.post()
        assert router.counter("requests", outcome="broken_stream") == 1


@pytest.mark.slow
async def test_a_silent_stream_is_ended(start):
    async with start("p0", "d0", settings=QUICK) as router:

        async def stalls(exchange):
            await exchange.stream_head()
            await exchange.event(token_event(TOKENS[0]))
            await hang(exchange)

        router["d0"].script.append(stalls)
        got = await router.post(stream=True)
        assert "silent" in got.text
        await until(lambda: not router["d0"].hanging, "the engine's request to be aborted")


@pytest.mark.parametrize(("leg", "stream"), [("p0", True), ("d0", True), ("d0", False)])
async def test_a_client_that_leaves_aborts_the_leg_in_progress(start, leg, stream):
    async with start("p0", "d0") as router:
        router[leg].script.append(hang)
        task = asyncio.ensure_future(router.post(stream=stream))
        await until(lambda: router[leg].hanging, "the request to reach the engine")
        assert router.in_flight()[leg] == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not router[leg].hanging, "the engine's request to be aborted")
        await until(router.idle, "the lease to return")
        assert router.counter("requests", outcome="disconnected") == 1
        assert (await router.post()).status_code == 200


async def test_a_client_that_leaves_mid_stream_aborts_the_engine(start):
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        router["d0"].script.append(slow(release))
        async with router.stream() as got:
            assert TOKENS[0] in await anext(got.aiter_text())
        await until(lambda: not router["d0"].connections, "the engine's connection to be closed")
        await until(router.idle, "the lease to return")


@pytest.mark.slow
async def test_back_pressure_reaches_the_engine_and_lets_go(start):
    """A client that does not read must stop the engine, not fill the router's memory."""
    chunk = b"data: " + b"x" * 65536 + b"\n\n"
    total, sent = 400, 0

    async def flood(exchange):
        nonlocal sent
        await exchange.stream_head()
        for _ in range(total):
            await exchange.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            sent += 1
        await exchange.send(b"0\r\n\r\n")

    async with start("p0", "d0") as router:
        router["d0"].script.append(flood)
        reader, writer = await router.connect()
        writer.transport.pause_reading()
        writer.write(post(stream=True))

        def paused():
            return [connection for connection in router.app.services.pool._all if connection._paused]

        async def stuck():
            before = -1
            while before != sent or not paused():
                before = sent
                await asyncio.sleep(0.3)

        await asyncio.wait_for(stuck(), 30)
        assert sent < total, "the engine was never stopped"
        (connection,) = paused()
        assert connection.address[1] == router["d0"].port
        writer.transport.resume_reading()
        got = 0
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
            got += size
        assert got == total * len(chunk)
        writer.close()


@pytest.mark.slow
async def test_a_client_that_never_reads_is_cut(start):
    async def flood(exchange):
        await exchange.stream_head()
        while True:
            await exchange.event("x" * 65536)

    async with start("p0", "d0", settings=QUICK) as router:
        router["d0"].script.append(flood)
        _, writer = await router.connect()
        writer.transport.pause_reading()
        writer.write(post(stream=True))
        await until(lambda: router.counter("requests", outcome="broken_stream"), "the client to be cut")
        await until(router.idle, "the lease to return")
        writer.transport.abort()


async def test_slow_readers_of_whole_answers_stop_nobody_elses_stream(start):
    """A whole answer gives its connection back before the client has read it: from then on it serves strangers."""
    size = 900_000
    async with start("p0", "d0") as router, contextlib.AsyncExitStack() as cleanup:

        async def large(exchange):
            body = b'{"choices":[{"text":"' + b"x" * size + b'"}]}'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
                body
            )
            await exchange.send(head + body)

        slow_ones = []
        for _ in range(6):
            router["d0"].script.append(large)
            served = router.counter("requests", outcome="ok")
            reader, writer = await router.connect()
            slow_ones.append((reader, writer))
            cleanup.callback(
                writer.transport.abort
            )  # also if the test fails: open sockets fail the next tests
            writer.transport.pause_reading()
            writer.write(post())
            await until(
                lambda n=served: router.counter("requests", outcome="ok") > n, "the answer to be written"
            )
        answers = await asyncio.wait_for(
            asyncio.gather(*(router.post(stream=True) for _ in range(24))), DEADLINE
        )
        assert all(got.text.endswith("data: [DONE]\n\n") for got in answers)
        for reader, writer in slow_ones:
            writer.transport.resume_reading()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert len(await reader.readexactly(size)) == size
            writer.close()

"""What clients can make the router hold."""

import asyncio
import gc
import tracemalloc

import msgspec
import pytest

from eldr_router.api import bodies
from eldr_router.flow.completion import Completion
from eldr_router.flow.decode_leg import DecodeLeg
from eldr_router.flow.legs import PrefillLeg
from eldr_router.http.requests import Request
from eldr_router.telemetry.request import RequestTelemetry
from tests.fakes.engines import answer, reset, slow
from tests.router.conftest import DEADLINE, until
from tests.router.test_http import HEALTH


def upload(length):
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length


@pytest.mark.slow
async def test_a_pipeline_is_answered_only_as_fast_as_it_is_read(start):
    count = 60_000
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.transport.pause_reading()
        writer.transport.set_write_buffer_limits(high=1 << 30)
        writer.write(HEALTH * count)
        (connection,) = router.app.clients.connections
        before = -1
        while before != (before := writer.transport.get_write_buffer_size()):
            await asyncio.sleep(0.5)
        assert connection._transport.get_write_buffer_size() < 1 << 18
        assert len(connection._backlog) < 1 << 20
        writer.transport.resume_reading()
        answer = len(b'{"status":"ok"}')
        for _ in range(count):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(answer)
        writer.close()


async def test_a_stream_does_not_hold_its_prompt(start):
    streams, size = 12, 400_000
    async with start("p0", "d0") as router:
        release = asyncio.Event()
        budget = router.app.clients.budget

        async def forgetful(exchange):
            exchange.seen.raw = b""  # the fake engine lives in this process, too
            await slow(release)(exchange)

        async def open_streams():
            opened = []
            for _ in range(streams):
                router["d0"].script.append(forgetful)
                body = b'{"model":"m","stream":true,"prompt":"' + b"x" * size + b'"}'
                reader, writer = await router.connect()
                writer.write(upload(len(body)) + body)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
                opened.append((reader, writer))
            for engine in router.engines.values():
                engine.seen.clear()
            gc.collect()
            return opened

        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            opened = await open_streams()
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert budget.held == 0
        assert held < streams * size / 4
        release.set()
        for reader, writer in opened:
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), DEADLINE)
            writer.close()


async def test_unfinished_uploads_share_a_bound(start):
    settings = {"max_body": 1 << 20, "max_bodies": 3 << 20}
    async with start("p0", "d0", settings=settings) as router:
        budget = router.app.clients.budget
        opened = [await router.connect() for _ in range(8)]
        for _, writer in opened:
            writer.write(upload(1 << 20) + b"x" * (900 << 10))
        await until(lambda: budget.held > 2 << 20, "uploads to arrive")
        answered = await _first_answers(opened)
        assert len(answered) == 5
        assert all(b"503" in answer and b"retry-after" in answer for answer in answered)
        assert budget.held <= 3 << 20
        for _, writer in opened:
            writer.close()
        await until(lambda: budget.held == 0, "the memory to be given back")
        assert (await router.post()).status_code == 200


async def _first_answers(opened):
    answers = []

    async def read(reader):
        answers.append(await reader.read())

    tasks = [asyncio.ensure_future(read(reader)) for reader, _ in opened]
    await until(lambda: len(answers) >= 5, "the others to be refused")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answers


@pytest.mark.parametrize("kind", ["ids", "text", "messages"])
def test_a_prompt_is_never_taken_apart(kind):
    """Ten million token ids as Python numbers would stop the event loop for a second, and take 400 MB."""
    prompt = {"ids": [1] * 100_000, "text": "x" * 200_000, "messages": [{"content": "x"}] * 8_000}[kind]
    path = bodies.CHAT if kind == "messages" else bodies.COMPLETIONS
    name = "messages" if kind == "messages" else "prompt"
    raw = msgspec.json.encode({"model": "m", name: prompt})
    tracemalloc.start()
    try:
        body = bodies.parse(raw, path)
        bodies.unsplittable(body)
        bodies.sequences(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150_000


async def test_a_request_whose_head_and_body_come_bit_by_bit_gives_its_memory_back(start):
    async with start("p0", "d0") as router:
        reader, writer = await router.connect()
        writer.write(upload(100))
        for _ in range(9):
            writer.write(b"x" * 10)
            await asyncio.sleep(0.01)
        await until(lambda: router.app.clients.budget.held == 90, "the beginning")
        writer.close()
        await until(lambda: router.app.clients.budget.held == 0, "the memory to be given back")
        assert await reader.read() == b""


async def test_what_a_request_held_is_gone_without_a_garbage_collector(start):
    """It looks for cycles seldom; one per request, with a prompt in it, would be memory held for nothing."""
    kinds = (Completion, PrefillLeg, DecodeLeg, Request, RequestTelemetry)
    async with start("p0", "d0", "d1") as router:
        gc.collect()
        gc.disable()
        try:
            for stream in (False, True) * 5:
                assert (await router.post(stream=stream)).status_code == 200
            router.play(reset, at=("p0", "d0"))
            assert (await router.post()).status_code == 200
            held = lambda: [type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds)]  # noqa: E731
            await until(lambda: not held(), "everything to be forgotten")
        finally:
            gc.enable()


@pytest.mark.parametrize(
    "field",
    [b'"n":1000000000', b'"prompt":"\xff"', b'"temperature":1e999', b'"x":' + b"[" * 5000 + b"]" * 5000],
)
async def test_a_body_beyond_its_limits_asks_no_engine(start, caplog, field):
    async with start("p0", "d0") as router:
        body = b'{"model":"m","prompt":"x",' + field + b"}"
        reader, writer = await router.connect()
        writer.write(upload(len(body)) + body)
        assert b" 400 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
        assert not any(engine.requests for engine in router.engines.values())
        assert router.app.clients.budget.held == 0
        assert not caplog.records
        writer.close()


SIZE = 12 << 20  # more than sockets hold
EMBED = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


async def test_an_answer_that_nobody_reads_is_in_the_budget(start):
    async with start("d0", settings={"max_body": 1 << 20, "max_bodies": 16 << 20}) as router:
        budget = router.app.clients.budget
        router["d0"].script.append(answer(200, "x" * SIZE))
        reader, writer = await router.connect()
        writer.transport.pause_reading()
        writer.write(EMBED)
        await until(lambda: SIZE <= budget.held < SIZE + (1 << 20), "the answer to be written")
        assert (await router.post()).status_code == 200, "there is room for others"
        writer.transport.resume_reading()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
        assert head.startswith(b"HTTP/1.1 200")
        await asyncio.wait_for(reader.readexactly(SIZE), DEADLINE)
        await until(lambda: not budget.held, "the memory to be given back")
        writer.close()


async def test_a_client_that_leaves_its_answer_gives_the_memory_back(start):
    async with start("d0") as router:
        router["d0"].script.append(answer(200, "x" * SIZE))
        _, writer = await router.connect()
        writer.transport.pause_reading()
        writer.write(EMBED)
        await until(lambda: router.app.clients.budget.held >= SIZE, "the answer to be written")
        writer.transport.abort()
        await until(lambda: not router.app.clients.budget.held, "the memory to be given back")

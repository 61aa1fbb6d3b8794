"""Scripted engines on raw sockets: what each one does to its next request is told by the test.

An engine without a script behaves: prefill hands over fresh blocks once, decode streams or answers. Every hand-over is
remembered, so that a test can prove that no prefill result was ever pulled twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from eldr.contract import PATH_ACTIVATIONS, PATH_LOAD, PATH_METRICS
from eldr.engine_limit import sequences_of
from eldr_kube.ports import free_port
from eldr_router.api.paths import APIS

TOKENS = [" one", " two", " three"]
CLIENT_ERROR = {
    "error": {"message": "prompt too long", "type": "BadRequestError", "param": None, "code": 400}
}


@dataclass(repr=False)
class Seen:
    """A request as an engine saw it."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    declined: bool = False

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def frees(self) -> bool:
        """Whether it is one that every engine rejects, so that a prefill result is freed."""
        return b"do_remote_prefill" in self.raw and b"use_beam_search" in self.raw


class Exchange:
    """One request at an engine, and the means to misbehave."""

    def __init__(self, engine: FakeEngine, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self.seen = seen
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def json(self, value: Any, status: int = 200, headers: str = "") -> None:
        body = json.dumps(value).encode()
        headers += self.engine.load
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def stream_head(self, headers: str = "") -> None:
        headers += self.engine.load
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{headers}transfer-encoding: chunked\r\n\r\n"
        await self.send(head.encode())

    async def event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        await self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    async def stream_end(self) -> None:
        await self.event("[DONE]")
        await self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Cut the connection with a RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


def token_event(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text}]})


def answer(status: int, value: Any, headers: str = "") -> Behaviour:
    return lambda exchange: exchange.json(value, status, headers)


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def close(exchange: Exchange) -> None:
    exchange.writer.close()


async def hang(exchange: Exchange) -> None:
    exchange.engine.hanging += 1
    try:
        await exchange.engine.gone(exchange)
    finally:
        exchange.engine.hanging -= 1


async def full(exchange: Exchange) -> None:
    """Decline the request, as an engine that keeps its own limit: nothing is read."""
    engine = exchange.engine
    exchange.seen.declined = True
    headers = f"x-eldr-full: {engine.in_flight}/{engine.limit}\r\n"
    await exchange.json({"error": {"message": "full", "code": 429}}, 429, headers)


async def error_event(exchange: Exchange) -> None:
    await exchange.stream_head()
    await exchange.event(json.dumps({"error": {"message": "Internal server error", "code": 500}}))
    await exchange.stream_end()


async def draining(exchange: Exchange) -> None:
    """Answer as vLLM does between SIGTERM and its end: with a stream that holds no token."""
    await exchange.stream_head()
    await exchange.event(json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}))
    await exchange.stream_end()


async def counted(exchange: Exchange) -> None:
    """Stream, and say at the end how many tokens there were: 11 of the prompt, 5 of the answer."""
    await exchange.stream_head()
    for text in TOKENS:
        await exchange.event(token_event(text))
    usage = {"prompt_tokens": 11, "total_tokens": 16, "completion_tokens": 5}
    await exchange.event(json.dumps({"choices": [], "usage": usage}))
    await exchange.stream_end()


def dies_after(tokens: int, torn: bytes = b"") -> Behaviour:
    """Stream some tokens, then half a chunk, then die."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.stream_head()
        for text in TOKENS[:tokens]:
            await exchange.event(token_event(text))
        if torn:
            await exchange.send(torn)
        await exchange.engine.released(exchange)
        exchange.reset()

    return behaviour


def pieces(*parts: bytes, close: bool = False) -> Behaviour:
    """Send exactly these bytes, each in a write of its own."""

    async def behaviour(exchange: Exchange) -> None:
        for part in parts:
            await exchange.send(part)
            await asyncio.sleep(0)
        if close:
            exchange.writer.close()

    return behaviour


def slow(release: asyncio.Event) -> Behaviour:
    """Stream the first token, the rest only after the release."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.event(token_event(TOKENS[0]))
        await release.wait()
        for text in TOKENS[1:]:
            await exchange.event(token_event(text))
        await exchange.stream_end()

    return behaviour


_blocks = itertools.count(1)


@dataclass(repr=False)
class FakeEngine:
    """One engine on a port of its own."""

    role: str
    name: str
    eldr: dict[str, Any] | None = None
    seen: list[Seen] = field(default_factory=list)
    script: deque[Behaviour] = field(default_factory=deque)
    activations: list[dict[str, Any]] | None = None
    boot: str = "b"
    connections: int = 0
    accepted: int = 0
    hanging: int = 0
    limit: int | None = None
    """Sequences that it runs, and reports, as with the plug-in; None: it has none."""
    in_flight: int = 0
    polls: int = 0
    report: Behaviour | None = None
    port: int = 0
    host: str = "127.0.0.1"
    kv: str = ""
    health: Behaviour | None = None
    metrics: Behaviour | None = None
    rejects: int = 400
    release: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def load(self) -> str:
        """What each answer reports."""
        return "" if self.limit is None else f"x-eldr-load: {self.in_flight}/{self.limit}\r\n"

    @property
    def requests(self) -> list[Seen]:
        """Completion requests only."""
        return [seen for seen in self.seen if seen.path in APIS and not seen.frees]

    @property
    def freed(self) -> list[str]:
        """Prefill results that this engine was asked to free by rejection."""
        return [s.body["kv_transfer_params"]["remote_request_id"] for s in self.seen if s.frees]

    @property
    def blocks(self) -> list[str]:
        """Prefill results that this engine was asked to pull."""
        params = [seen.body.get("kv_transfer_params") for seen in self.requests if not seen.declined]
        return [p["remote_request_id"] for p in params if p and p.get("do_remote_prefill")]

    async def start(self) -> None:
        self.port = (
            self.port or free_port()
        )  # it is kept over restarts, so no connection must get it meanwhile
        self._server = await asyncio.start_server(self._connected, self.host, self.port)

    def stop_listening(self) -> None:
        """Accept no connection any more and keep those there are, as a server does that is shutting down."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def refuse(self) -> None:
        """Stop listening and drop every connection: what a dead process looks like."""
        self.stop_listening()
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # aborted transports close in the loop's next turns

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.accepted += 1
        try:
            while (seen := await read_request(reader)) is not None:
                exchange = Exchange(self, seen, writer)
                if seen.path == PATH_LOAD:
                    self.polls += 1
                else:
                    self.seen.append(seen)
                gone = asyncio.ensure_future(self.gone(exchange))
                work = asyncio.ensure_future(self._behave(exchange))
                try:
                    await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (gone, work):
                        task.cancel()
                    await asyncio.gather(gone, work, return_exceptions=True)
                if writer.transport.is_closing() or reader.at_eof():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.transport.abort()

    async def _behave(self, exchange: Exchange) -> None:
        path = urlsplit(exchange.seen.path)
        if path.path == PATH_LOAD:
            report = {"v": 1, "in_flight": self.in_flight, "limit": self.limit}
            told = answer(404, {}) if self.limit is None else answer(200, report)
            await (self.report or told)(exchange)
        elif path.path == PATH_ACTIVATIONS:
            await self._activations(exchange, parse_qs(path.query))
        elif path.path == PATH_METRICS:
            await (self.metrics or answer(404, {}))(exchange)
        elif path.path == "/health":
            await (self.health or answer(200, {}))(exchange)
        elif path.path == "/v1/models":
            await exchange.json({"object": "list", "data": [{"id": "m"}]})
        elif exchange.seen.frees:
            await exchange.json(
                {"error": {"message": "no", "type": "BadRequestError", "code": self.rejects}}, self.rejects
            )
        elif self.limit is None:
            await self._answer(exchange)
        elif self.in_flight >= min(self.limit, int(exchange.seen.headers.get("x-eldr-limit", self.limit))):
            await full(exchange)
        else:
            sequences = sequences_of(path.path, json.dumps(exchange.seen.body).encode())
            self.in_flight += sequences
            try:
                await self._answer(exchange)
            finally:
                self.in_flight -= sequences

    async def _answer(self, exchange: Exchange) -> None:
        if self.script:
            await self.script.popleft()(exchange)
        else:
            await (prefill if self.role == "prefill" else decode)(exchange)

    async def _activations(self, exchange: Exchange, query: dict[str, list[str]]) -> None:
        if self.activations is None:
            await exchange.json({"error": {"message": "Not Found"}}, 404)
            return
        after = int(query["after"][0]) if query.get("boot", [self.boot]) == [self.boot] else 0
        prefix = query["prefix"][0]
        records = [
            r for r in self.activations[after:] if not isinstance(r, dict) or prefix in r["request_id"]
        ]
        await exchange.json(
            {"v": 1, "boot": self.boot, "next": len(self.activations), "lost": 0, "records": records}
        )

    async def gone(self, exchange: Exchange) -> None:
        """Wait until the router has closed the connection."""
        reader = exchange.writer.transport.get_protocol()._stream_reader
        while (
            not reader.at_eof() and reader.exception() is None and not exchange.writer.transport.is_closing()
        ):
            await asyncio.sleep(0.005)

    async def released(self, exchange: Exchange) -> None:
        """Wait until the test says so."""
        await self.release.wait()


async def read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode().split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), f"a header came twice: {lines}"
    return Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def prefill(exchange: Exchange, **more: Any) -> None:
    params: dict[str, Any] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_request_id": f"blocks-{next(_blocks)}",
        "remote_engine_id": exchange.engine.name,
        "remote_block_ids": [[1, 2, 3]],
    }
    if exchange.engine.eldr is not None:
        params["eldr"] = exchange.engine.eldr
    await exchange.json({"id": exchange.seen.id, "choices": [], "kv_transfer_params": params, **more})


async def decode(exchange: Exchange) -> None:
    if not exchange.seen.body.get("stream"):
        await exchange.json({"id": exchange.seen.id, "choices": [{"text": "".join(TOKENS)}]})
        return
    await exchange.stream_head()
    for text in TOKENS:
        await exchange.event(token_event(text))
    await exchange.stream_end()


@contextlib.asynccontextmanager
async def engines(*names: str) -> AsyncIterator[list[FakeEngine]]:
    """Start engines; names that begin with ``p`` are prefill engines."""
    made = [FakeEngine("prefill" if name.startswith("p") else "decode", name) for name in names]
    try:
        for engine in made:
            await engine.start()
        yield made
    finally:
        for engine in made:
            engine.release.set()
            await engine.refuse()

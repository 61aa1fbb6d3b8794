"""Mock engines that routers are measured between; they count what they serve.

    .venv/bin/python -m eldr_bench.mocks LAYERS EXPERTS PORT PORT...

serves engines of a model with so many layers and experts: the first port prefills, the others decode.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from functools import partial
from typing import cast

import numpy as np
import uvloop

from eldr.wire import ExpertCounts, encode_counts

LAYERS, EXPERTS, TOP_K, TOKENS = 48, 128, 8, 512
DIFFERENT = 61
INTERVAL = 0.02
ANSWER_BYTES = 300

CHUNK = json.dumps(
    {
        "id": "cmpl-0123456789",
        "object": "text_completion",
        "created": 1700000000,
        "model": "m",
        "choices": [{"index": 0, "text": " token", "logprobs": None, "finish_reason": None}],
        "sent": "x" * 60,
    }
)
STAMP = 60
"""Hexadecimal digits of the monotonic time at which a chunk was sent, in nanoseconds."""


def chunked(data: str) -> bytes:
    """Return one server-sent event as one chunk."""
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def prefill_answer(rng: np.random.Generator, layers: int, experts: int, *, signed: bool) -> bytes:
    """Return what a prefill engine answers: block ids and, if it is signed, random expert counts of so many cells."""
    params: dict[str, object] = {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "remote_block_ids": [list(range(32))],
    }
    if signed:
        chances = rng.dirichlet([4.0] * experts, layers)
        counts = rng.multinomial(TOP_K * TOKENS, chances).astype(np.uint16)
        params["eldr"] = encode_counts(ExpertCounts(counts, top_k=TOP_K, tokens=TOKENS, exact=True))
    body = json.dumps({"id": "x", "choices": [], "kv_transfer_params": params}).encode()
    return head("application/json", f"content-length: {len(body)}") + body


def head(kind: str, framing: str) -> bytes:
    """Return a response head."""
    return f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode()


ANSWER = head("application/json", f"content-length: {ANSWER_BYTES}") + b'{"choices": [{"text": "%s"}]}' % (
    b"x" * (ANSWER_BYTES - 27)
)
STREAM = head("text/event-stream", "transfer-encoding: chunked")
BEFORE, AFTER = chunked(CHUNK).split(b"x" * STAMP)
LAST = chunked("[DONE]") + b"0\r\n\r\n"


def token() -> bytes:
    """Return a chunk that says when it was sent."""
    return b"%b%0*x%b" % (BEFORE, STAMP, time.monotonic_ns(), AFTER)


class Served:
    """What all engines served since they began, whether prefills are signed, and seconds between the chunks of a stream."""

    def __init__(self, layers: int, experts: int) -> None:
        rng = np.random.default_rng(0)
        self._answers = {
            signed: [prefill_answer(rng, layers, experts, signed=signed) for _ in range(DIFFERENT)]
            for signed in (False, True)
        }
        self.signed = True
        self.interval = INTERVAL
        self.counts: Counter[str] = Counter()

    def prefill(self) -> bytes:
        """Return the next answer of a prefill engine."""
        self.counts["prefill"] += 1
        self.counts["signed"] += self.signed
        return self._answers[self.signed][self.counts["prefill"] % DIFFERENT]

    def decode(self, body: bytes) -> None:
        """Count a request of a decode engine, and whether it names blocks to pull."""
        self.counts["decode"] += 1
        self.counts["pulled"] += b'"remote_block_ids"' in body

    def told(self) -> bytes:
        """Return the response to ``GET /served``."""
        body = json.dumps(self.counts).encode()
        return head("application/json", f"content-length: {len(body)}") + body


class Mock(asyncio.Protocol):
    """An engine: answers at once, or streams a chunk per interval until the client's ``max_tokens``.

    ``GET /signed/0`` and ``GET /signed/1`` switch the signatures of the prefill engine off and on, ``GET /interval/50`` sets the
    milliseconds between chunks; ``GET /served`` tells the counts.
    """

    def __init__(self, served: Served, *, prefill: bool) -> None:
        self._served = served
        self._prefill = prefill
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._buffer.lower().find(b"content-length: ", 0, end) + 16
        length = int(self._buffer[at : self._buffer.find(b"\r\n", at)]) if at > 15 else 0
        if len(self._buffer) < end + 4 + length:
            return
        first, body = self._buffer[:end], self._buffer[end + 4 : end + 4 + length]
        self._buffer = b""
        if first.startswith(b"GET "):
            self._get(first)
        elif self._prefill:
            self._transport.write(self._served.prefill())
        else:
            self._served.decode(body)
            self._decode(body)

    def _get(self, first: bytes) -> None:
        if first.startswith(b"GET /signed/"):
            self._served.signed = first[12:13] == b"1"
        if first.startswith(b"GET /interval/"):
            self._served.interval = int(first[14:].split(b" ", 1)[0]) / 1e3
        self._transport.write(self._served.told() if first.startswith(b"GET /served") else ANSWER)

    def _decode(self, body: bytes) -> None:
        if b'"stream":true' not in body.replace(b" ", b""):
            self._transport.write(ANSWER)
            return
        self._left = json.loads(body)["max_tokens"]
        self._transport.write(STREAM + token())
        self._due = asyncio.get_running_loop().time()
        self._next()

    def _next(self) -> None:
        self._due += self._served.interval  # a chunk that is late delays no other
        asyncio.get_running_loop().call_at(self._due, self._token)

    def _token(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(token() if self._left else LAST)
        if self._left:
            self._next()


async def serve(layers: int, experts: int, *ports: int) -> None:
    """Serve engines: the first port prefills, the others decode."""
    loop = asyncio.get_running_loop()
    served = Served(layers, experts)
    for port in ports:
        await loop.create_server(
            partial(Mock, served, prefill=port == ports[0]), "127.0.0.1", port, backlog=4096
        )
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))

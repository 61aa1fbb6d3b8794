"""A load of different requests on a router, every answer of which is read and looked at; what it costs the router's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from eldr_bench.mocks import ANSWER_BYTES, DIFFERENT
from eldr_bench.proof import require

CLIENTS, REQUESTS = 32, 1600
STREAMS, TOKENS = 100, 40


def request(number: int, *, stream: bool, tokens: int) -> bytes:
    """Return a request with a prompt of 400 bytes."""
    prompt = f"{number % DIFFERENT:04} " + "word " * 79
    body = json.dumps({"model": "m", "prompt": prompt, "stream": stream, "max_tokens": tokens}).encode()
    lines = [b"POST /v1/completions HTTP/1.1", b"host: r", b"content-type: application/json"]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


async def ask(port: int, numbers: range) -> None:
    """Ask one request after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        for number in numbers:
            writer.write(request(number, stream=False, tokens=16))
            got = await reader.readuntil(b"\r\n\r\n")
            require(got.startswith(b"HTTP/1.1 200"), f"a request was answered by {got!r}")
            await reader.readexactly(ANSWER_BYTES)


async def ask_all(port: int) -> None:
    """Ask ``REQUESTS`` requests on ``CLIENTS`` connections."""
    each = REQUESTS // CLIENTS
    await asyncio.gather(*(ask(port, range(at * each, (at + 1) * each)) for at in range(CLIENTS)))


async def listen(port: int, number: int, tokens: int) -> int:
    """Read one stream to its good end; return its chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = bytearray()
    with contextlib.closing(writer):
        writer.write(request(number, stream=True, tokens=tokens))
        while not data.endswith(b"0\r\n\r\n"):
            more = await reader.read(65536)
            require(more, f"a stream ended after {bytes(data[-200:])!r}")
            data += more
    chunks = data.count(b"data: ")
    require(data.startswith(b"HTTP/1.1 200"), f"a stream was answered by {bytes(data[:200])!r}")
    require(
        chunks == tokens + 1 and b"data: [DONE]" in data, f"a stream of {tokens} tokens had {chunks} chunks"
    )
    return chunks


async def listen_all(port: int, streams: int = STREAMS, tokens: int = TOKENS) -> int:
    """Read streams at the same time; return their chunks."""
    return sum(await asyncio.gather(*(listen(port, at, tokens) for at in range(streams))))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_mebibytes(pid: int) -> float:
    """Return a process's resident memory."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

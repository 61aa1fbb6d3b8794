"""A load of different requests on a router, every answer of which is read and looked at; what it costs the router's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path
from typing import NamedTuple

from eldr_bench.mocks import ANSWER_BYTES, DIFFERENT
from eldr_bench.proof import require

CLIENTS, REQUESTS = 32, 1600
STREAMS, CHUNKS = 100, 250


class Target(NamedTuple):
    """A router's port for clients, the key that it asks for, and how its certificate is checked if it has one."""

    port: int
    key: str = ""
    tls: ssl.SSLContext | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)


def request(number: int, *, stream: bool, tokens: int, key: str = "", size: int = 400) -> bytes:
    """Return a request with a prompt of ``size`` bytes."""
    prompt = f"{number % DIFFERENT:04} " + "word " * (size // 5 - 1)
    body = json.dumps({"model": "m", "prompt": prompt, "stream": stream, "max_tokens": tokens}).encode()
    lines = [b"POST /v1/completions HTTP/1.1", b"host: r", b"content-type: application/json"]
    lines += [b"authorization: Bearer " + key.encode()] if key else []
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


async def ask(target: Target, numbers: range, size: int = 400) -> None:
    """Ask one request after the other on one connection, with prompts of ``size`` bytes."""
    reader, writer = await target.connect()
    with contextlib.closing(writer):
        for number in numbers:
            writer.write(request(number, stream=False, tokens=16, key=target.key, size=size))
            got = await reader.readuntil(b"\r\n\r\n")
            require(got.startswith(b"HTTP/1.1 200"), f"a request was answered by {got!r}")
            await reader.readexactly(ANSWER_BYTES)


async def ask_all(target: Target, requests: int = REQUESTS, size: int = 400) -> None:
    """Ask requests on ``CLIENTS`` connections, with prompts of ``size`` bytes."""
    each = requests // CLIENTS
    await asyncio.gather(*(ask(target, range(at * each, (at + 1) * each), size) for at in range(CLIENTS)))


async def listen(target: Target, number: int, tokens: int) -> int:
    """Read one stream to its good end; return its chunks."""
    reader, writer = await target.connect()
    data = bytearray()
    with contextlib.closing(writer):
        writer.write(request(number, stream=True, tokens=tokens, key=target.key))
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


async def listen_all(target: Target, streams: int = STREAMS, tokens: int = CHUNKS - 1) -> int:
    """Read streams at the same time; return their chunks."""
    return sum(await asyncio.gather(*(listen(target, at, tokens) for at in range(streams))))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_mebibytes(pid: int) -> float:
    """Return a process's resident memory."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

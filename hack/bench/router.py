"""CPU time of the router per request and per streamed chunk, and its memory with 500 open streams.

The router runs on one core, mock engines and load on another; CPU is read from ``/proc/PID/task/*/schedstat``, so that
waiting for a busy machine does not count. Prints one JSON list of figures, see ``render.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import uvloop

from eldr import centroids
from eldr.centroids import CentroidSet
from eldr.wire import ExpertCounts, encode_counts

LAYERS, EXPERTS, TOP_K, K = 48, 128, 8, 4
ROUNDS = 5
CLIENTS, REQUESTS = 32, 4000
STREAMS, TOKENS, INTERVAL = 100, 40, 0.02
OPEN_STREAMS = 500
ROUTER_CORE, OTHER_CORE = 0, max(os.sched_getaffinity(0))

CHUNK = json.dumps(
    {
        "id": "cmpl-0123456789",
        "object": "text_completion",
        "created": 1700000000,
        "model": "m",
        "choices": [{"index": 0, "text": " token", "logprobs": None, "finish_reason": None}],
        "padding": "x" * 60,
    }
)


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def chunked(data: str) -> bytes:
    """Return one server-sent event as one chunk."""
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def prefill_answer() -> bytes:
    """Return what a prefill engine answers: block ids and the expert counts of 48 x 128 cells."""
    counts = np.random.default_rng(0).multinomial(4096, [1 / EXPERTS] * EXPERTS, size=LAYERS)
    signature = encode_counts(ExpertCounts(counts.astype(np.uint16), top_k=TOP_K, tokens=512, exact=True))
    params = {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "remote_block_ids": [list(range(32))],
        "eldr": signature,
    }
    body = json.dumps({"id": "x", "choices": [], "kv_transfer_params": params}).encode()
    return head("application/json", f"content-length: {len(body)}") + body


def head(kind: str, framing: str) -> bytes:
    """Return a response head."""
    return f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode()


PREFILL = prefill_answer()
ANSWER = head("application/json", "content-length: 300") + b"x" * 300
STREAM = head("text/event-stream", "transfer-encoding: chunked")
TOKEN, LAST = chunked(CHUNK), chunked("[DONE]") + b"0\r\n\r\n"


class Mock(asyncio.Protocol):
    """An engine: answers at once, or streams a chunk per interval until the client's ``max_tokens``."""

    def __init__(self, *, prefill: bool) -> None:
        self._prefill = prefill
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._buffer.find(b"content-length: ") + 16
        length = int(self._buffer[at : self._buffer.find(b"\r\n", at)]) if at > 15 else 0
        if len(self._buffer) < end + 4 + length:
            return
        body, self._buffer = self._buffer[end + 4 : end + 4 + length], b""
        if self._prefill:
            self._transport.write(PREFILL)
        elif b'"stream":true' not in body:
            self._transport.write(ANSWER)
        else:
            self._left = json.loads(body)["max_tokens"]
            self._transport.write(STREAM + TOKEN)
            asyncio.get_running_loop().call_later(INTERVAL, self._token)

    def _token(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(TOKEN if self._left else LAST)
        if self._left:
            asyncio.get_running_loop().call_later(INTERVAL, self._token)


async def mocks(ports: list[int]) -> None:
    """Serve engines: the first port prefills, the others decode."""
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(
            lambda port=port: Mock(prefill=port == ports[0]), "127.0.0.1", port, backlog=1024
        )
    await asyncio.Event().wait()


def request(*, stream: bool, tokens: int) -> bytes:
    """Return a request with a prompt of 400 bytes."""
    body = json.dumps({"model": "m", "prompt": "word " * 80, "stream": stream, "max_tokens": tokens}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def ask(port: int, count: int) -> None:
    """Ask one request after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = request(stream=False, tokens=16)
    for _ in range(count):
        writer.write(data)
        got = await reader.readuntil(b"\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200"), got
        await reader.readexactly(300)
    writer.close()


async def listen(port: int, tokens: int) -> int:
    """Read one stream; return its chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(stream=True, tokens=tokens))
    data = bytearray()
    while not data.endswith(b"0\r\n\r\n"):
        data += await reader.read(65536)
    writer.close()
    return data.count(b"data: ")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_mebibytes(pid: int) -> float:
    """Return a process's resident memory."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def centroid_file() -> bytes:
    """Return a random set."""
    centers = np.random.default_rng(1).random((K, LAYERS * EXPERTS), dtype=np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    weights = np.ones((LAYERS, EXPERTS), dtype=np.float32)
    kept = tuple(range(LAYERS))
    return centroids.dump(
        CentroidSet("m", LAYERS, EXPERTS, TOP_K, kept, "counts", weights, centers, 1, 0.0)  # type: ignore[arg-type]
    )


@contextlib.contextmanager
def process(core: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program on one core."""
    child = subprocess.Popen(["taskset", "-c", str(core), *arguments])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_ready(url: str) -> None:
    """Wait until a router serves with its centroids."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as got:
            if json.load(got)["policy"] == "ELDR":
                return
        time.sleep(0.05)
    raise TimeoutError(url)


async def measure(pid: int, port: int) -> list[dict[str, object]]:
    """Interleave the loads."""
    per_request: list[float] = []
    per_chunk: list[float] = []
    for turn in range(ROUNDS + 1):
        before = cpu_seconds(pid)
        await asyncio.gather(*(ask(port, REQUESTS // CLIENTS) for _ in range(CLIENTS)))
        middle = cpu_seconds(pid)
        chunks = sum(await asyncio.gather(*(listen(port, TOKENS) for _ in range(STREAMS))))
        after = cpu_seconds(pid)
        if turn:  # the first round warms up
            per_request.append((middle - before) * 1e3 / REQUESTS)
            per_chunk.append((after - middle - STREAMS * per_request[-1] / 1e3) * 1e6 / chunks)
    streams = [asyncio.ensure_future(listen(port, round(4 / INTERVAL))) for _ in range(OPEN_STREAMS)]
    await asyncio.sleep(3)
    memory = resident_mebibytes(pid)
    await asyncio.gather(*streams)
    return [
        {"name": "router CPU per request, 16 KB signature", "unit": "ms", "aim": 0.25, "values": per_request},
        {"name": "router CPU per streamed chunk", "unit": "us", "aim": 32.0, "values": per_chunk},
        {
            "name": f"router memory, {OPEN_STREAMS} open streams",
            "unit": "MiB",
            "aim": None,
            "values": [memory],
        },
    ]


def main() -> None:
    """Start mock engines and a router, measure, print."""
    if sys.argv[1:2] == ["mocks"]:
        uvloop.run(mocks([int(port) for port in sys.argv[2:]]))
        return
    os.sched_setaffinity(0, {OTHER_CORE})
    ports = [free_port() for _ in range(1 + K)]
    port, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "c").write_bytes(centroid_file())
        urls = [f"http://127.0.0.1:{p}" for p in ports]
        decode = [{"name": f"d{i}", "url": url} for i, url in enumerate(urls[1:])]
        workers = {
            "model": "m",
            "prefill": [{"name": "p", "url": urls[0]}],
            "decode": decode,
            "sample_rate": 0.1,
        }
        (folder / "w").write_text(json.dumps({**workers, "max_in_flight": 10000}))
        command = [str(Path(sys.executable).parent / "eldr"), "router", "--workers", str(folder / "w")]
        command += [
            "--centroids",
            str(folder / "c"),
            "--log-dir",
            str(folder / "log"),
            "--log-level",
            "warning",
        ]
        command += ["--port", str(port), "--admin-port", str(admin)]
        engines = [sys.executable, __file__, "mocks", *map(str, ports)]
        with process(OTHER_CORE, *engines), process(ROUTER_CORE, *command) as router:
            wait_ready(f"http://127.0.0.1:{admin}/eldr/v1/state")
            figures = uvloop.run(measure(router.pid, port))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

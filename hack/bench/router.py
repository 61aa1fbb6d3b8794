"""CPU time of routers per request and per streamed chunk, and their memory with 500 open streams.

Ours and vllm-router (Rust, from PyPI, see ``vllm_router/``) serve the same load through the same mock engines, round by
round in turns, each pinned to one core; mocks and load run on another. ``ELDR_BENCH_BEFORE`` names a checkout of an older
state that is measured beside them. CPU is read from ``/proc/PID/task/*/schedstat``, so that waiting for a busy machine does
not count. Prints one JSON list of figures, see ``render.py``; ratios are taken within each round.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop

from eldr import centroids
from eldr.centroids import CentroidSet
from eldr.wire import ExpertCounts, encode_counts
from eldr_kube.ports import free_port, free_ports

HERE = Path(__file__).parent
OURS, BEFORE, PEER = "eldr router", "eldr router before", "vllm-router 0.1.17"
LAYERS, EXPERTS, TOP_K, K = 48, 128, 8, 4
ROUNDS = 24
CLIENTS, REQUESTS = 32, 1600
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


def chunked(data: str) -> bytes:
    """Return one server-sent event as one chunk."""
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def prefill_answer(*, signed: bool) -> bytes:
    """Return what a prefill engine answers: block ids and, if it is signed, the expert counts of 48 x 128 cells."""
    counts = np.random.default_rng(0).multinomial(4096, [1 / EXPERTS] * EXPERTS, size=LAYERS)
    signature = encode_counts(ExpertCounts(counts.astype(np.uint16), top_k=TOP_K, tokens=512, exact=True))
    params: dict[str, object] = {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "remote_block_ids": [list(range(32))],
    }
    if signed:
        params["eldr"] = signature
    body = json.dumps({"id": "x", "choices": [], "kv_transfer_params": params}).encode()
    return head("application/json", f"content-length: {len(body)}") + body


def head(kind: str, framing: str) -> bytes:
    """Return a response head."""
    return f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode()


PREFILL = {True: prefill_answer(signed=True), False: prefill_answer(signed=False)}
ANSWER = head("application/json", "content-length: 300") + b'{"choices": [{"text": "' + b"x" * 273 + b'"}]}'
STREAM = head("text/event-stream", "transfer-encoding: chunked")
TOKEN, LAST = chunked(CHUNK), chunked("[DONE]") + b"0\r\n\r\n"


class Mock(asyncio.Protocol):
    """An engine: answers at once, or streams a chunk per interval until the client's ``max_tokens``.

    ``GET /signed/0`` and ``GET /signed/1`` switch the signatures of the prefill engine off and on.
    """

    def __init__(self, signed: list[bool], *, prefill: bool) -> None:
        self._signed = signed
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
        if data.startswith(b"GET /signed/"):
            self._signed[0] = data[12:13] == b"1"
            self._transport.write(ANSWER)
        elif data.startswith(b"GET "):
            self._transport.write(ANSWER)
        elif self._prefill:
            self._transport.write(PREFILL[self._signed[0]])
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
    signed = [True]
    for port in ports:
        await loop.create_server(
            lambda port=port: Mock(signed, prefill=port == ports[0]), "127.0.0.1", port, backlog=1024
        )
    await asyncio.Event().wait()


def request(*, stream: bool, tokens: int) -> bytes:
    """Return a request with a prompt of 400 bytes."""
    body = json.dumps({"model": "m", "prompt": "word " * 80, "stream": stream, "max_tokens": tokens}).encode()
    lines = [b"POST /v1/completions HTTP/1.1", b"host: r", b"content-type: application/json"]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


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
def process(core: int, *arguments: str, checkout: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program on one core, with the code of another checkout if one is named."""
    env = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout}/router"} if checkout else None
    command = ["taskset", "-c", str(core), *arguments]
    child = subprocess.Popen(command, env=env, cwd=checkout, stdout=subprocess.DEVNULL)
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


def wait_healthy(url: str) -> None:
    """Wait until a router answers."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(0.05)
    raise TimeoutError(url)


@dataclass
class Candidate:
    """A router under test and what was measured of it."""

    name: str
    pid: int
    port: int
    signed: list[float] = field(default_factory=list)
    unsigned: list[float] = field(default_factory=list)
    chunk: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


async def per_request(candidate: Candidate) -> float:
    """Return milliseconds of CPU per request."""
    before = cpu_seconds(candidate.pid)
    await asyncio.gather(*(ask(candidate.port, REQUESTS // CLIENTS) for _ in range(CLIENTS)))
    return (cpu_seconds(candidate.pid) - before) * 1e3 / REQUESTS


async def per_chunk(candidate: Candidate) -> float:
    """Return microseconds of CPU per streamed chunk, the requests' own cost taken off."""
    before = cpu_seconds(candidate.pid)
    chunks = sum(await asyncio.gather(*(listen(candidate.port, TOKENS) for _ in range(STREAMS))))
    spent = cpu_seconds(candidate.pid) - before - STREAMS * candidate.signed[-1] / 1e3
    return spent * 1e6 / chunks


def sign(port: int, *, signed: bool) -> None:
    """Switch signatures."""
    urllib.request.urlopen(f"http://127.0.0.1:{port}/signed/{signed:d}").close()


async def measure(candidates: list[Candidate], prefill: int) -> list[dict[str, object]]:
    """Interleave routers and loads."""
    for turn in range(ROUNDS + 1):
        for candidate in candidates[turn % len(candidates) :] + candidates[: turn % len(candidates)]:
            sign(prefill, signed=True)
            candidate.signed.append(await per_request(candidate))
            candidate.chunk.append(await per_chunk(candidate))
            sign(prefill, signed=False)
            candidate.unsigned.append(await per_request(candidate))
    for candidate in candidates:
        for values in (candidate.signed, candidate.unsigned, candidate.chunk):
            del values[0]  # the first round warms up
        sign(prefill, signed=True)
        streams = [
            asyncio.ensure_future(listen(candidate.port, round(4 / INTERVAL))) for _ in range(OPEN_STREAMS)
        ]
        await asyncio.sleep(3)
        candidate.memory.append(resident_mebibytes(candidate.pid))
        await asyncio.gather(*streams)
    return list(figures(candidates))


def figures(candidates: list[Candidate]) -> Iterator[dict[str, object]]:
    """Yield each router's figures, and their ratios to the peer's, round by round."""
    kinds = (
        ("signed", "CPU per request, 16 KB signature", "ms", 1.3),
        ("unsigned", "CPU per request, no signature", "ms", 1.0),
        ("chunk", "CPU per streamed chunk", "us", 0.85),
        ("memory", f"memory, {OPEN_STREAMS} open streams", "MiB", None),
    )
    for key, what, unit, aim in kinds:
        by_name = {candidate.name: getattr(candidate, key) for candidate in candidates}
        for name, values in by_name.items():
            yield {"name": f"{name}: {what}", "unit": unit, "aim": None, "values": values}
        if PEER in by_name and aim is not None:
            peer = by_name.pop(PEER)
            for name, values in by_name.items():
                ratios = [one / theirs for one, theirs in zip(values, peer, strict=True)]
                yield {
                    "name": f"{name} / {PEER}: {what}",
                    "unit": "x",
                    "aim": aim if name == OURS else None,
                    "values": ratios,
                }


def ours(folder: Path, urls: list[str], port: int, admin: int) -> list[str]:
    """Return the command line of our router."""
    (folder / "c").write_bytes(centroid_file())
    workers = {
        "model": "m",
        "prefill": [{"name": "p", "url": urls[0]}],
        "decode": [{"name": f"d{i}", "url": url} for i, url in enumerate(urls[1:])],
        "sample_rate": 0.1,
    }
    (folder / "w").write_text(json.dumps({**workers, "max_in_flight": 10000}))
    options = {"workers": "w", "centroids": "c", "log-dir": f"log-{port}"}
    command = [sys.executable, "-c", "from eldr.cli import main; main()", "router", "--log-level", "error"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(folder / value))]
    return [*command, "--port", str(port), "--admin-port", str(admin)]


def theirs(environment: Path, urls: list[str], port: int) -> list[str]:
    """Return the command line of vllm-router."""
    command = [str(environment / "bin" / "vllm-router"), "--vllm-pd-disaggregation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prefill", urls[0]]
    command += [part for url in urls[1:] for part in ("--decode", url)]
    command += ["--prefill-policy", "round_robin", "--decode-policy", "round_robin", "--log-level", "error"]
    return [*command, "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"]


def main() -> None:
    """Start mock engines and routers, measure, print."""
    if sys.argv[1:2] == ["mocks"]:
        uvloop.run(mocks([int(port) for port in sys.argv[2:]]))
        return
    os.sched_setaffinity(0, {OTHER_CORE})
    ports = free_ports(1 + K)
    urls = [f"http://127.0.0.1:{p}" for p in ports]
    before = os.environ.get("ELDR_BENCH_BEFORE")
    install = subprocess.run(
        [HERE / "vllm_router" / "install"], check=False, stdout=subprocess.PIPE, text=True
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.enter_context(process(OTHER_CORE, sys.executable, __file__, "mocks", *map(str, ports)))
        candidates = []
        for title, checkout in ((OURS, None), (BEFORE, before)):
            if title == OURS or checkout:
                port, admin = free_ports(2)
                child = stack.enter_context(
                    process(ROUTER_CORE, *ours(Path(name), urls, port, admin), checkout=checkout)
                )
                wait_ready(f"http://127.0.0.1:{admin}/eldr/v1/state")
                candidates.append(Candidate(title, child.pid, port))
        if install.returncode == 0:
            port = free_port()
            command = theirs(Path(install.stdout.strip()), urls, port)
            child = stack.enter_context(process(ROUTER_CORE, *command))
            wait_healthy(f"http://127.0.0.1:{port}/health")
            candidates.append(Candidate(PEER, child.pid, port))
        else:
            print(f"{PEER} cannot be installed here: compared with nobody", file=sys.stderr)
        print(json.dumps(uvloop.run(measure(candidates, ports[0]))))


if __name__ == "__main__":
    main()

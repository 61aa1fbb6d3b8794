"""Routers under heavy load: many streams at once, long prompts, large signatures, and requests that do not wait for answers.

Our router, by its default policy, and vllm-router serve the same load in turns, as in ``router.py``. Streams are also read from the
engines without a router: what that row shows is the delay of the load and the engines, which share a core. Prints one JSON list of
figures, see ``__main__.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import uvloop

from eldr.contract import POLICY_MARGINAL
from eldr_bench.candidates import PEER, Candidate, get, ours
from eldr_bench.load import REQUESTS, Target, request, resident_mebibytes
from eldr_bench.mocks import ANSWER_BYTES, STAMP
from eldr_bench.proof import require
from eldr_bench.router import LIMIT_SECONDS, in_turn, mock_engines, peer, per_request, ratios, serving

ROUNDS = 5
STREAMS, INTERVAL_MS, TOKENS = 1500, 50, 200
CHUNKS = STREAMS * 1000 // INTERVAL_MS
"""Chunks in a second, of all streams together."""
REACHED = 0.9
"""Of these chunks and of arrivals, at least so many must have been served in time for a figure to bear its name."""
OPENING_SECONDS = 3.0
RATES, ARRIVING_SECONDS = (100, 500, 1000), 4.0
LONG, LONG_REQUESTS = 400_000, 320
SHAPES = (48, 128), (64, 512)
"""Layers and experts of 12 and 64 KiB of counts, two bytes each."""
OWN, NOBODY = "eldr router", "no router"
_STAMPS = re.compile(b'"sent": "([0-9a-f]{%d})"' % STAMP)


class Kind(NamedTuple):
    """What is measured; ``has_ratio`` where rounds are also held against the peer's."""

    what: str
    unit: str
    aim: float | None = None
    has_ratio: bool = False


DELAY = Kind(f"P99 of a token's delay, {CHUNKS:,} chunks/s", "ms", 100.0)
Found = dict[Kind, dict[str, list[float]]]


class Stream(asyncio.Protocol):
    """A stream that is read to its end, and the delay of each of its chunks.

    Parameters
    ----------
    delays : list of (float, float)
        Gets the time of each chunk's arrival and the seconds since it was sent.
    """

    def __init__(self, sent: bytes, delays: list[tuple[float, float]]) -> None:
        self._sent, self._delays = sent, delays
        self._tail, self._begun = b"", b""
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if len(self._begun) < 12:
            self._begun = (self._begun + data)[:12]
        data = self._tail + data
        at = 0
        for found in _STAMPS.finditer(data):
            self._delays.append((now / 1e9, (now - int(found[1], 16)) / 1e9))
            at = found.end()
        self._tail = data[max(at, len(data) - 2 * STAMP) :]
        if self._tail.endswith(b"0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(self._begun == b"HTTP/1.1 200")
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(False)


async def stream_all(name: str, ports: Sequence[int], pid: int | None) -> tuple[float, float]:
    """Open all streams and read them; return the delay's P99 in milliseconds while all are open, and the memory of a process then."""
    loop, delays = asyncio.get_running_loop(), list[tuple[float, float]]()
    streams, begun = [], time.monotonic()
    for number in range(STREAMS):
        await asyncio.sleep(begun + OPENING_SECONDS * number / STREAMS - time.monotonic())
        sent = request(number, stream=True, tokens=TOKENS)
        _, stream = await loop.create_connection(
            partial(Stream, sent, delays), "127.0.0.1", ports[number % len(ports)]
        )
        streams.append(stream)
    first = time.monotonic() + 1.0
    last = begun + TOKENS * INTERVAL_MS / 1e3  # the first stream ends then, or later
    await asyncio.sleep(last - time.monotonic())
    open_now = sum(not stream.ended.done() for stream in streams)
    memory = resident_mebibytes(pid) if pid else 0.0
    require(open_now >= REACHED * STREAMS, f"{name}: {open_now} of {STREAMS} streams were open")
    require(all(await asyncio.gather(*(stream.ended for stream in streams))), f"{name}: a stream was cut")
    require(len(delays) == STREAMS * TOKENS, f"{name}: {len(delays)} chunks instead of {STREAMS * TOKENS}")
    seen = [delay for at, delay in delays if first <= at < last]
    rate = len(seen) / (last - first)
    require(rate >= REACHED * CHUNKS, f"{name}: {rate:.0f} chunks/s instead of {CHUNKS}")
    return float(np.percentile(seen, 99)) * 1e3, memory


async def arrive(name: str, target: Target, rate: float, rng: np.random.Generator) -> float:
    """Send requests that arrive by chance, whether others are answered or not; return the P99 of their milliseconds."""
    times = np.cumsum(rng.exponential(1 / rate, round(rate * ARRIVING_SECONDS)))
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    took: list[float] = []

    async def one(number: int, due: float) -> None:
        reader, writer = idle.pop() if idle else await target.connect()
        writer.write(request(number, stream=False, tokens=16))
        head = await reader.readuntil(b"\r\n\r\n")
        require(head.startswith(b"HTTP/1.1 200"), f"{name}: a request was answered by {head!r}")
        await reader.readexactly(ANSWER_BYTES)
        took.append(time.monotonic() - due)  # since it was due: a late load counts, too
        idle.append((reader, writer))

    begun = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for number, after in enumerate(times):
                await asyncio.sleep(begun + after - time.monotonic())
                group.create_task(one(number, begun + after))
        reached = times[-1] / (time.monotonic() - begun)
        require(reached >= REACHED, f"{name}: {reached:.0%} of {rate:g} requests/s were served in time")
    finally:
        for _, writer in idle:
            writer.close()
    return float(np.percentile(took, 99)) * 1e3


async def one_round(candidate: Candidate, engines: str, found: Found, seed: int) -> None:
    """Measure everything of one router once."""

    def add(kind: Kind, value: float) -> None:
        found[kind][candidate.name].append(value)

    async with serving(candidate, engines, LONG_REQUESTS, signed=True):
        spent = await per_request(candidate, LONG_REQUESTS, LONG)
    add(Kind("CPU per request, prompt of 400 KB", "ms", has_ratio=True), spent)
    for rate in RATES:
        requests = round(rate * ARRIVING_SECONDS)
        async with serving(candidate, engines, requests, signed=True):
            p99 = await arrive(candidate.name, candidate.target, rate, np.random.default_rng(seed))
        add(Kind(f"P99 of a request, {rate} arrive in a second", "ms"), p99)
    async with serving(candidate, engines, STREAMS, signed=True):
        p99, memory = await stream_all(candidate.name, [candidate.target.port], candidate.pid)
    add(DELAY, p99)
    add(Kind(f"memory, {STREAMS:,} open streams", "MiB", 100.0), memory)


async def measure(candidates: Sequence[Candidate], urls: Sequence[str], found: Found) -> None:
    """Load routers in turns, and the engines themselves; a first round warms up."""
    get(f"{urls[0]}/interval/{INTERVAL_MS}")
    ports = [int(url.rpartition(":")[2]) for url in urls[1:]]
    for turn in range(ROUNDS + 1):
        into: Found = found if turn else defaultdict(lambda: defaultdict(list))
        for candidate in in_turn(candidates, turn):
            await one_round(candidate, urls[0], into, turn)
        p99, _ = await stream_all(NOBODY, ports, None)
        into[DELAY][NOBODY].append(p99)


async def measure_signatures(candidates: Sequence[Candidate], engines: str, found: Found, kind: Kind) -> None:
    """Measure the CPU of requests with signatures of one size."""
    for turn in range(ROUNDS + 1):
        for candidate in in_turn(candidates, turn):
            async with serving(candidate, engines, REQUESTS, signed=True):
                spent = await per_request(candidate)
            if turn:
                found[kind][candidate.name].append(spent)


@contextlib.contextmanager
def routers(folder: Path, layers: int, experts: int) -> Iterator[tuple[list[Candidate], list[str]]]:
    """Run engines of one shape, our router without a centroid set, and the peer; ours must have placed as it should in the end."""
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(mock_engines(layers, experts))
        own = stack.enter_context(ours(OWN, POLICY_MARGINAL, folder, urls, without=("centroids", "log-dir")))
        yield [own, *peer(stack, urls)], urls
        own.prove(own.state())


def figures(found: Found) -> Iterator[dict[str, object]]:
    """Yield what was found, and ratios to the peer's, round by round."""
    for kind, by_name in found.items():
        for name, values in by_name.items():
            aim = kind.aim if name == OWN else None
            yield {"name": f"{name}: {kind.what}", "unit": kind.unit, "aim": aim, "values": values}
        if kind.has_ratio and PEER in by_name:
            values = ratios(by_name[OWN], by_name[PEER])
            yield {"name": f"{OWN} / {PEER}: {kind.what}", "unit": "x", "aim": None, "values": values}


def main() -> None:
    """Measure, print."""
    found: Found = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as name:
        for layers, experts in SHAPES:
            kind = Kind(
                f"CPU per request, signature of {layers * experts * 2 // 1024} KiB", "ms", has_ratio=True
            )
            with routers(Path(name, f"{layers}"), layers, experts) as (candidates, urls):
                load = measure_signatures(candidates, urls[0], found, kind)
                uvloop.run(asyncio.wait_for(load, LIMIT_SECONDS))
        with routers(Path(name, "heavy"), *SHAPES[0]) as (candidates, urls):
            uvloop.run(asyncio.wait_for(measure(candidates, urls, found), LIMIT_SECONDS))
    print(json.dumps(list(figures(found))))


if __name__ == "__main__":
    main()

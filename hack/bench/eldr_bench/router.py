"""CPU time of routers per request and per streamed chunk, and their memory with 500 open streams.

Ours, by each of its policies of experts, and vllm-router (Rust, from PyPI, see ``vllm_router/``) serve the same load through the same mock
engines, round by round in turns, each pinned to one core; mocks and load run on another. ``ELDR_BENCH_BEFORE`` names a checkout of an older
state, that is measured beside them; each of ours has its ratio to it. CPU is read from ``/proc/PID/task/*/schedstat``, so that waiting for a
busy machine does not count. Every answer is read, the engines' own counts are held against the load after each part, and each router of ours must have
placed every request by the policy that its rows name. Prints one JSON list of figures, see ``__main__.py``; ratios are taken within
each round.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import uvloop

from eldr.contract import POLICY_ELDR, POLICY_MARGINAL
from eldr_bench.candidates import PEER, Candidate, K, get, ours, process, theirs
from eldr_bench.load import (
    CHUNKS,
    REQUESTS,
    STREAMS,
    ask_all,
    cpu_seconds,
    listen_all,
    resident_mebibytes,
)
from eldr_bench.mocks import EXPERTS, INTERVAL, LAYERS
from eldr_bench.proof import require
from eldr_kube.ports import free_ports

T = TypeVar("T")
PEER_ENVIRONMENT = Path(__file__).parents[1] / "vllm_router"
INSTALL = Path(__file__).parents[2] / "apart", PEER_ENVIRONMENT
ROUNDS = 12
LIMIT_SECONDS = 1500
OPEN_STREAMS, OPEN_TOKENS = 500, round(4 / INTERVAL)
OTHER_CORE = max(os.sched_getaffinity(0))
OURS, BEFORE = "eldr router", "eldr router before"
POLICIES = POLICY_MARGINAL, POLICY_ELDR
KINDS = (
    ("signed", "CPU per request, 16 KB signature", "ms", 1.0),
    ("unsigned", "CPU per request, no signature", "ms", 1.0),
    ("chunk", "CPU per streamed chunk", "us", 0.85),
    ("streamed", f"CPU per streamed request of {CHUNKS} chunks, 16 KB signature", "ms", 0.9),
    ("memory", f"memory, {OPEN_STREAMS} open streams", "MiB", None),
)
"""What is measured, and the aim of its ratio to the peer's."""


@contextlib.asynccontextmanager
async def serving(candidate: Candidate, engines: str, requests: int, *, signed: bool) -> AsyncIterator[None]:
    """Hold what the engines served meanwhile against what was asked: each request prefilled and decoded once, its blocks pulled."""
    get(f"{engines}/signed/{signed:d}")
    before = get(f"{engines}/served")
    yield
    after = get(f"{engines}/served")
    served = {name: after[name] - before.get(name, 0) for name in after}
    expected = {"prefill": requests, "signed": requests * signed, "decode": requests, "pulled": requests}
    require(served == expected, f"{candidate.name}: engines served {served}, expected {expected}")
    candidate.asked[signed] += requests


async def per_request(candidate: Candidate, requests: int = REQUESTS, size: int = 400) -> float:
    """Return milliseconds of CPU per request with a prompt of ``size`` bytes."""
    before = cpu_seconds(candidate.pid)
    await ask_all(candidate.target, requests, size)
    return (cpu_seconds(candidate.pid) - before) * 1e3 / requests


async def per_stream(candidate: Candidate) -> float:
    """Return milliseconds of CPU per streamed request of ``CHUNKS`` chunks."""
    before = cpu_seconds(candidate.pid)
    await listen_all(candidate.target)
    return (cpu_seconds(candidate.pid) - before) * 1e3 / STREAMS


def in_turn(candidates: Sequence[T], turn: int) -> Sequence[T]:
    """Return what is compared in the order of a round: each comes first now and then."""
    first = turn % len(candidates)
    return *candidates[first:], *candidates[:first]


async def interleave(candidates: Sequence[Candidate], engines: str, rounds: int) -> None:
    """Give routers the same loads in turns; a first round warms up."""
    for turn in range(rounds + 1):
        for candidate in in_turn(candidates, turn):
            async with serving(candidate, engines, REQUESTS + STREAMS, signed=True):
                candidate.signed.append(await per_request(candidate))
                candidate.streamed.append(await per_stream(candidate))
            async with serving(candidate, engines, REQUESTS, signed=False):
                candidate.unsigned.append(await per_request(candidate))
    for candidate in candidates:
        for values in (candidate.signed, candidate.unsigned, candidate.streamed):
            del values[0]


async def measure(candidates: Sequence[Candidate], engines: str) -> None:
    """Measure CPU, then memory."""
    await interleave(candidates, engines, ROUNDS)
    for candidate in candidates:
        async with serving(candidate, engines, OPEN_STREAMS, signed=True):
            streams = asyncio.ensure_future(listen_all(candidate.target, OPEN_STREAMS, OPEN_TOKENS))
            await asyncio.sleep(3)
            candidate.memory.append(resident_mebibytes(candidate.pid))
            await streams


def figures(candidates: list[Candidate]) -> Iterator[dict[str, object]]:
    """Yield each router's figures, and their ratios to the peer's, round by round."""
    for key, what, unit, aim in KINDS:
        by_name = {candidate.name: getattr(candidate, key) for candidate in candidates}
        for name, values in by_name.items():
            yield {"name": f"{name}: {what}", "unit": unit, "aim": None, "values": values}
        pairs = [(f"{OURS}, {policy}", f"{BEFORE}, {policy}") for policy in POLICIES]
        pairs += [(name, PEER) for name in by_name if name != PEER]
        for name, other in pairs if aim is not None else ():
            if other in by_name:
                aimed = other == PEER and name.startswith(f"{OURS},")
                yield {
                    "name": f"{name} / {other}: {what}",
                    "unit": "x",
                    "aim": aim if aimed else None,
                    "values": ratios(by_name[name], by_name[other]),
                }


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return by how much figures differ from others of the same rounds."""
    return [one / other for one, other in zip(values, others, strict=True)]


@contextlib.contextmanager
def mock_engines(layers: int = LAYERS, experts: int = EXPERTS) -> Iterator[list[str]]:
    """Run mock engines on the core of the load, this program's, and return their URLs: the first one prefills."""
    os.sched_setaffinity(0, {OTHER_CORE})
    ports = free_ports(1 + K)
    arguments = map(str, (layers, experts, *ports))
    with process(OTHER_CORE, sys.executable, "-m", "eldr_bench.mocks", *arguments):
        yield [f"http://127.0.0.1:{port}" for port in ports]


def peer(stack: contextlib.ExitStack, urls: list[str]) -> list[Candidate]:
    """Run the peer until the stack ends; nobody where it cannot be installed."""
    install = subprocess.run(INSTALL, check=False, stdout=subprocess.PIPE, text=True)
    if install.returncode == 0:
        return [stack.enter_context(theirs(Path(install.stdout.strip()), urls))]
    print(f"{PEER} cannot be installed here: compared with nobody", file=sys.stderr)
    return []


def main() -> None:
    """Start mock engines and routers, measure, print."""
    before = os.environ.get("ELDR_BENCH_BEFORE")
    checkouts = {OURS: None, **({BEFORE: str(Path(before).resolve())} if before else {})}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        urls = stack.enter_context(mock_engines())
        candidates: list[Candidate] = []
        for title, checkout in checkouts.items():
            for policy in POLICIES:
                folder = Path(name, f"{policy}-{len(candidates)}")
                router = ours(f"{title}, {policy}", policy, folder, urls, checkout)
                candidates.append(stack.enter_context(router))
        candidates += peer(stack, urls)
        uvloop.run(asyncio.wait_for(measure(candidates, urls[0]), LIMIT_SECONDS))
        for candidate in candidates:
            if candidate.policy:
                candidate.prove(candidate.state())
        print(json.dumps(list(figures(candidates))))


if __name__ == "__main__":
    main()

"""What it brings to send short prompts whole to decode engines: times over thresholds of ``min_prefill_tokens``; writes docs/benchmarks/short-prompts.md.

A router and simulated engines are processes; all thresholds of a round serve the same arrivals.

make -C hack/lab bench-short-prompts
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from eldr.clients import UNBOUNDED
from eldr_bench.candidates import get, wait
from eldr_bench.machine import ROOT, load_before, revision
from eldr_bench.page import measured
from eldr_bench.proof import require
from eldr_kube.ports import free_ports
from eldr_lab.report import filled, table
from eldr_lab.studies.hot_router import arrivals, problem, program
from eldr_lab.synthetic.pairs import half_width

THRESHOLDS = (0, 64, 256, 1024, 4096)
DECODE, TOKENS, SPEED, RATE = 2, 48, 2.0, 10.0
SHORTEST, LONGEST = 8, 4000
SECONDS, ROUNDS = 30.0, 4
PAGE = ROOT / "docs" / "benchmarks" / "short-prompts.md"


@dataclass
class Run:
    """Seconds to the first token and between later ones, by request; requests that went whole for their length."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    short: float = 0.0

    def row(self) -> list[float]:
        """Return its figures: share that went whole, means and P99 of both, milliseconds."""
        times = [1e3 * np.array(one) for one in (self.first, self.between)]
        return [
            100 * self.short / len(self.first),
            *(float(f(one)) for one in times for f in (np.mean, partial(np.percentile, q=99))),
        ]


def run(threshold: int, seconds: float, seed: int) -> Run:
    """Serve a load with one threshold."""
    with contextlib.ExitStack() as stack:
        *ports, port, admin = free_ports(3 + DECODE)
        urls = [f"http://127.0.0.1:{one}" for one in ports]
        for at, one in enumerate(ports):
            role = "decode" if at else "prefill"
            how = ("--role", role, "--port", str(one), "--speed", str(SPEED), "--model", "m")
            stack.enter_context(program(ROOT, "engine-sim", *how))
        decode = [{"name": f"d{at}", "url": url} for at, url in enumerate(urls[1:])]
        document = {"model": "m", "prefill": [{"name": "p", "url": urls[0]}], "decode": decode}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "w").write_text(json.dumps({**document, "min_prefill_tokens": threshold}))
        where = ("--workers", str(folder / "w"), "--port", str(port), "--admin-port", str(admin))
        stack.enter_context(program(ROOT, "router", *where))
        for url in (*(f"{url}/health" for url in urls), f"http://127.0.0.1:{port}/ready"):
            wait("it is not ready", partial(problem, url))
        found = Run()
        asyncio.run(load(found, f"http://127.0.0.1:{port}/v1/completions", seconds, seed))
        counters: dict[str, float] = get(f"http://127.0.0.1:{admin}/eldr/v1/state")["counters"]
        found.short = counters.get('eldr_router_whole_total{reason="short"}', 0.0)
    require((found.short > 0) == (threshold > SHORTEST), f"threshold {threshold}: {found.short} went whole")
    return found


async def load(found: Run, url: str, seconds: float, seed: int) -> None:
    """Send prompts of many lengths at random times."""
    rng = np.random.default_rng(seed)
    async with httpx.AsyncClient(timeout=120, limits=UNBOUNDED) as client, asyncio.TaskGroup() as group:
        async for _ in arrivals(rng, RATE, seconds):
            words = int(np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST))))
            prompt = f"{rng.integers(1 << 30)} " + "word " * words
            group.create_task(ask(found, client, url, prompt))


async def ask(found: Run, client: httpx.AsyncClient, url: str, prompt: str) -> None:
    """Read a stream, and note its times."""
    loop, body = (
        asyncio.get_running_loop(),
        {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "stream": True},
    )
    began, times = loop.time(), []
    async with client.stream("POST", url, json=body) as answer:
        require(answer.status_code == 200, f"status {answer.status_code}")
        times = [loop.time() async for line in answer.aiter_lines() if line.startswith("data: {")]
    require(len(times) >= TOKENS, f"{len(times)} tokens")
    found.first.append(times[0] - began)
    found.between.append((times[-1] - times[0]) / (len(times) - 1))


def main() -> None:
    """Measure, and write the page."""
    conditions, found = f"{revision()}, {load_before()}", dict[int, list[Any]]()
    for seed in range(ROUNDS):
        for threshold in THRESHOLDS[:: 1 if seed % 2 else -1]:
            found.setdefault(threshold, []).append(run(threshold, SECONDS, seed).row())
            print(threshold, seed, found[threshold][-1], flush=True)
    rows = []
    for threshold in THRESHOLDS:
        means = [f"{mean:.1f}" for mean in np.mean(found[threshold], 0)]
        changes = 100 * (np.array(found[threshold])[:, 1:] / np.array(found[0])[:, 1:] - 1)
        cells = (f"{np.mean(column):+.0f} ±{half_width(column):.0f}" for column in changes.T)
        rows.append((str(threshold), *means, *(cells if threshold else [""] * 4)))
    times = [f"{what} {of}" for what in ("TTFT", "TPOT") for of in ("mean", "P99")]
    head = ("threshold", "whole, %", *(f"{time}, ms" for time in times), *(f"{time}, %" for time in times))
    text = filled(
        Path(__file__).with_name("templates") / "short_prompts.txt", decode=DECODE, rate=RATE, seconds=SECONDS, shortest=SHORTEST,
        longest=LONGEST, tokens=TOKENS, speed=SPEED, rounds=ROUNDS, conditions=measured(conditions), table=table(head, rows),
    )  # fmt: skip
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

"""Routers of which one gets most of the load, before engines near their limit: who is refused, what is declined, what engines hold.

Routers and simulated engines are processes, those of another checkout (``--before``) and of this one, in turns under the same arrivals.

    python -m eldr_lab.studies.hot_router --before CHECKOUT [--seconds 40] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
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
from eldr_lab.synthetic.pairs import half_width

ENGINES, LIMIT, HOT = 4, 12, 0.6
TOKENS, SPEED, RATE = 40, 4.0, 15.0
ROUTERS = (1, 4, 8)
PAGE = ROOT / "docs" / "benchmarks" / "hot-router.md"
_METRIC = re.compile(
    r"^(vllm:num_(?:requests_running|requests_waiting|preemptions_total))\{.*\} (\S+)$", re.MULTILINE
)


@dataclass
class Run:
    """What one pool did: answers by router and status, sequences at the fullest engine, preemptions, refusals by engines."""

    answers: Counter[tuple[int, int]] = field(default_factory=Counter)
    fullest: float = 0.0
    preempted: float = 0.0
    declined: float = 0.0

    def refused(self, which: Callable[[int], bool]) -> float:
        """Return the share of requests that some routers refused, in percent."""
        chosen = {key: count for key, count in self.answers.items() if which(key[0])}
        return (
            100 * sum(n for (_, status), n in chosen.items() if status == 429) / max(1, sum(chosen.values()))
        )

    def row(self) -> list[float]:
        """Return its figures: refused in all, by the first router, by the others, declined, fullest, preempted."""
        refused = [self.refused(which) for which in (lambda _: True, lambda router: not router, bool)]
        return [*refused, 100 * self.declined / self.answers.total(), self.fullest, self.preempted]


@contextlib.contextmanager
def program(checkout: Path, *arguments: str) -> Iterator[None]:
    """Run ``eldr`` with the code of a checkout."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{checkout}:{checkout}/router",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", "from eldr.cli import main; main()", *arguments, "--log-level", "error"]
    child = subprocess.Popen(command, env=env, cwd=checkout, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()


def run(checkout: Path, routers: int, seconds: float, seed: int) -> Run:
    """Serve a load with the routers and engines of a checkout."""
    with contextlib.ExitStack() as stack:
        ports = free_ports(1 + ENGINES + 2 * routers)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for port in ports[: 1 + ENGINES]:
            role = "prefill" if port == ports[0] else "decode"
            more = ("--max-num-seqs", "64", "--speed", str(SPEED), "--model", "m")
            stack.enter_context(program(checkout, "engine-sim", "--role", role, "--port", str(port), *more))
        decode = [{"name": f"d{at}", "url": url} for at, url in enumerate(urls[1 : 1 + ENGINES])]
        document = {
            "model": "m",
            "policy": "JSQ",
            "prefill": [{"name": "p", "url": urls[0]}],
            "decode": decode,
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "w").write_text(json.dumps({**document, "max_in_flight": LIMIT}))
        clients, admins = ports[1 + ENGINES : 1 + ENGINES + routers], ports[1 + ENGINES + routers :]
        for port, admin in zip(clients, admins, strict=True):
            others = [
                part for other in admins if other != admin for part in ("--peer", f"http://127.0.0.1:{other}")
            ]
            where = ("--workers", str(folder / "w"), "--port", str(port), "--admin-port", str(admin))
            stack.enter_context(program(checkout, "router", *where, *others))
        for url in urls[: 1 + ENGINES]:
            wait("an engine is not ready", partial(problem, f"{url}/health"))
        for port in clients:
            wait("a router is not ready", partial(problem, f"http://127.0.0.1:{port}/ready"))
        found = Run()
        asyncio.run(load(found, clients, urls[1 : 1 + ENGINES], seconds, seed))
        for admin in admins:
            counters: dict[str, float] = get(f"http://127.0.0.1:{admin}/eldr/v1/state")["counters"]
            found.declined += sum(
                n for name, n in counters.items() if "retries" in name and 'cause="full"' in name
            )
    return found


def problem(url: str) -> str:
    """Return why a router is not ready yet, empty for nothing."""
    try:
        httpx.get(url).raise_for_status()
    except httpx.HTTPError as error:
        return str(error)
    return ""


async def arrivals(rng: np.random.Generator, rate: float, seconds: float) -> AsyncIterator[None]:
    """Yield when requests arrive, at random."""
    loop = asyncio.get_running_loop()
    began, due = loop.time(), 0.0
    while (due := due + rng.exponential(1 / rate)) < seconds:
        await asyncio.sleep(began + due - loop.time())
        yield


async def load(found: Run, ports: list[int], engines: list[str], seconds: float, seed: int) -> None:
    """Send requests at random times, most to the first router, and look at engines meanwhile."""
    rng = np.random.default_rng(seed)
    async with httpx.AsyncClient(timeout=120, limits=UNBOUNDED) as client, asyncio.TaskGroup() as group:
        over = asyncio.Event()
        looking = group.create_task(look(found, client, engines, over))
        asking: list[asyncio.Task[None]] = []
        async for _ in arrivals(rng, RATE, seconds):
            router = 0 if len(ports) == 1 or rng.random() < HOT else int(rng.integers(1, len(ports)))
            prompt = f"{rng.integers(1 << 30)} " + "word " * rng.integers(20, 200)
            asking.append(group.create_task(ask(found, client, router, ports[router], prompt)))
        await asyncio.gather(*asking)
        over.set()
        await looking


async def ask(found: Run, client: httpx.AsyncClient, router: int, port: int, prompt: str) -> None:
    body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": TOKENS}
    answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
    require(
        answer.status_code in (200, 429),
        f"router {router} answered {answer.status_code}: {answer.text[:200]}",
    )
    found.answers[router, answer.status_code] += 1


async def look(found: Run, client: httpx.AsyncClient, engines: list[str], over: asyncio.Event) -> None:
    """Read what engines hold, ten times a second."""
    while not over.is_set():
        texts = [(await client.get(f"{url}/metrics")).text for url in engines]
        values = [{name: float(value) for name, value in _METRIC.findall(text)} for text in texts]
        found.preempted = sum(each["vllm:num_preemptions_total"] for each in values)
        held = max(each["vllm:num_requests_running"] + each["vllm:num_requests_waiting"] for each in values)
        found.fullest = max(found.fullest, held)
        await asyncio.sleep(0.1)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    conditions, rows = f"{revision()}, {load_before()}", []
    for routers in ROUTERS:
        found: dict[str, list[list[float]]] = {"before": [], "now": []}
        for seed in range(options.rounds):
            for name, checkout in (("before", options.before.resolve()), ("now", ROOT))[
                :: 1 if seed % 2 else -1
            ]:
                one = run(checkout, routers, options.seconds, seed)
                require(one.answers, "nothing was asked")
                require(name == "before" or one.fullest <= LIMIT, f"an engine held {one.fullest} of {LIMIT}")
                found[name].append(one.row())
                print(name, routers, seed, one, flush=True)
        mean = np.mean(found["now"], axis=0)
        require(mean[2] <= 2 * mean[0], "routers beside a hot one refuse most")
        for name, several in found.items():
            columns = list(zip(*several, strict=True))
            cells = [f"{np.mean(column):.1f} ±{half_width(column):.1f}" for column in columns]
            rows.append((str(routers), name, *cells[:2], cells[2] if routers > 1 else "", *cells[3:]))
    head = (
        "routers",
        "",
        "429 %",
        "of the first",
        "of the others",
        "declined %",
        "fullest engine",
        "preemptions",
    )
    text = filled(
        Path(__file__).with_name("templates") / "hot_router.txt", engines=ENGINES, limit=LIMIT, rate=RATE, tokens=TOKENS,
        seconds=options.seconds, hot=HOT, rounds=options.rounds, conditions=measured(conditions), table=table(head, rows),
    )  # fmt: skip
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

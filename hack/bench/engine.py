"""What the plug-in costs a real engine: the same requests to a pair with it and a pair without it, in turns, in one run.

    .venv/bin/python hack/bench/engine.py

starts four vLLM engines on the CPU (prefill and decode, with and without the plug-in) and writes docs/benchmarks/engine.md.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from eldr.engine.install import copy  # noqa: E402
from tests.support.processes import wait_for  # noqa: E402 - the launcher of the real-engine tests
from tests.vllm.engines import MODEL, NAME, Engine, Setup  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "engine.md"
PROMPTS = (128, 512, 1536)
BATCHES = (1, 8)
TOKENS = 64
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Side:
    """A pair of engines."""

    prefill: Engine
    decode: Engine

    def prefill_once(self, client: httpx.Client, prompt: list[int]) -> tuple[float, dict[str, Any]]:
        """Prefill a prompt; return seconds and what the decode engine needs."""
        body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        begun = time.perf_counter()
        answer = client.post(
            f"{self.prefill.url}/v1/completions", json={"model": NAME, **body}
        ).raise_for_status()
        return time.perf_counter() - begun, answer.json()["kv_transfer_params"]

    def decode_once(self, client: httpx.Client, prompt: list[int], kv: dict[str, Any], tokens: int) -> None:
        """Pull and decode."""
        kv.pop("eldr", None)
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "kv_transfer_params": kv,
        }
        client.post(f"{self.decode.url}/v1/completions", json={"model": NAME, **body}).raise_for_status()

    @contextlib.contextmanager
    def alone(self, other: Side) -> Iterator[None]:
        """Stop the other pair's processes meanwhile: idle engines poll, and there are two cores for all."""
        for engine in (other.prefill, other.decode):
            engine.pause()
        try:
            yield
        finally:
            for engine in (other.prefill, other.decode):
                engine.resume()

    def step_seconds(self) -> tuple[float, float]:
        """Return vLLM's own sum and count of the time between tokens."""
        name = "vllm:inter_token_latency_seconds"
        return self.decode.metric(f"{name}_sum"), self.decode.metric(f"{name}_count")


def _client() -> httpx.Client:
    # a kept connection may close while its engine stands still
    return httpx.Client(timeout=300, limits=httpx.Limits(max_keepalive_connections=0))


def prompts(seed: int, length: int, n: int) -> list[list[int]]:
    """Return random prompts: nothing is cached."""
    return np.random.default_rng(seed).integers(300, 4000, (n, length)).tolist()  # type: ignore[no-any-return]


def measure_prefill(sides: tuple[Side, Side], length: int, rounds: int) -> np.ndarray:
    """Return seconds per prefill, shape (rounds, 2), the median of a few; each is pulled before the next one starts."""
    seconds = np.empty((rounds, 2))
    with _client() as client:
        for turn in range(rounds):
            asked = prompts(length * rounds + turn, length, 1 + REPEATS)
            for which in (0, 1) if turn % 2 else (1, 0):
                with sides[which].alone(sides[1 - which]):
                    taken = []
                    for prompt in asked:
                        spent, kv = sides[which].prefill_once(client, prompt)
                        sides[which].decode_once(client, prompt, kv, 1)
                        taken.append(spent)
                seconds[turn, which] = np.median(taken[1:])  # the first one wakes a pair that stood still
    return seconds


def measure_decode(sides: tuple[Side, Side], batch: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds per decode step and per batch of requests, both of shape (rounds, 2); a step's is the mean over all tokens."""

    def decode(side: Side, prompt: list[int], kv: dict[str, Any]) -> None:
        side.decode_once(client, prompt, kv, TOKENS)

    steps, whole = np.empty((rounds, 2)), np.empty((rounds, 2))
    seeds = itertools.count(10_000 * batch)
    with _client() as client, concurrent.futures.ThreadPoolExecutor(batch) as pool:
        for turn in range(rounds):
            waking, *asked = prompts(next(seeds), 64, 1 + batch)
            for which in (0, 1) if turn % 2 else (1, 0):
                side = sides[which]
                with side.alone(sides[1 - which]):
                    decode(side, waking, side.prefill_once(client, waking)[1])
                    handed = [side.prefill_once(client, prompt)[1] for prompt in asked]
                    before, begun = side.step_seconds(), time.perf_counter()
                    list(pool.map(functools.partial(decode, side), asked, handed))
                    whole[turn, which] = time.perf_counter() - begun
                    after = side.step_seconds()
                steps[turn, which] = (after[0] - before[0]) / (after[1] - before[1])
    return steps, whole


def row(name: str, seconds: np.ndarray) -> str:
    """Return a line of the table: medians, median ratio and its quartiles."""
    without, with_it = np.median(seconds, axis=0) * 1e3
    ratio = seconds[:, 1] / seconds[:, 0]
    low, middle, high = np.percentile(ratio, [25, 50, 75])
    fastest = np.divide(*np.percentile(seconds, 10, axis=0)[::-1])
    return f"| {name} | {len(ratio)} | {without:.2f} | {with_it:.2f} | {middle:.3f} ({low:.3f}..{high:.3f}) | {fastest:.3f} |"


def page(rows: list[str]) -> str:
    """Return the page."""
    shape = "a model of 4 MoE layers x 64 experts, top-4"
    return "\n".join(
        [
            "# What the plug-in costs a real engine",
            "",
            f"vLLM 0.32 on a CPU, {shape}, {platform.machine()}, 2 shared cores, one thread per engine; `make bench-engine` on",
            f"{datetime.now(UTC).date()}.",
            "The same requests went to a pair of engines with the plug-in and to one without it, in turns. Milliseconds are medians, the",
            "ratio is the median over the rounds with its quartiles, and beside it that of the fastest tenth of either side, which other programs",
            "disturbed least; the machine is shared, so only ratios mean something. The other pair stood still meanwhile.",
            "Quartiles far on both sides of 1: the noise of this machine, where ten processes share two cores, is larger than the cost, and the",
            "medians are no estimate of it. Steps of so small a model take 10 ms, so that fixed costs weigh more here than on a GPU.",
            "",
            "| | rounds | without (ms) | with (ms) | ratio | of the fastest |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"A prefill is one step, measured by its client, the median of {REPEATS} in a round; a decode step is vLLM's",
            f"`inter_token_latency_seconds` over a batch of requests with {TOKENS} tokens each. A step of this model takes milliseconds on a CPU.",
            "What the counting itself takes: [kernels](kernels.md).",
            "",
            "## Memory",
            "",
            "Prefill engines keep MoE layers x experts bytes per KV block, next to layers x 2 x KV heads x head size x bytes x block size. With",
            "tensor parallelism the first rank keeps all of it, beside its own share of the KV cache:",
            "",
            "| model | table per block | KV per block | share |",
            "|---|---|---|---|",
            *(model.row() for model in MODELS),
            "",
            "Decode engines keep 2 x `max_num_seqs` rows of MoE layers x experts x 4 bytes (12 MiB for Qwen3-30B-A3B and 256 requests), and",
            "1024 finished requests of 17 KiB each in `/dev/shm`.",
            "",
        ]
    )


@dataclass(frozen=True, slots=True)
class Model:
    """What decides how much the counts weigh beside a rank's KV cache; ``size`` is bytes per value, ``block`` tokens."""

    name: str
    layers: int
    moe_layers: int
    experts: int
    kv_heads: int
    head: int
    size: int = 2
    block: int = 16

    def row(self) -> str:
        """Return a line of the table."""
        table = self.moe_layers * self.experts
        kv = self.layers * 2 * self.kv_heads * self.head * self.size * self.block
        return f"| {self.name} | {table / 1024:.2f} KiB | {kv / 1024:.0f} KiB | {100 * table / kv:.2f} % |"


MODELS = (
    Model("tiny-moe of this repository, float32", 4, 4, 64, 2, 32, size=4, block=32),
    Model("Qwen3-30B-A3B, bfloat16", 48, 48, 128, 4, 128),
    Model("Qwen3-30B-A3B, bfloat16, --block-size=128", 48, 48, 128, 4, 128, block=128),
    Model("Qwen3-235B-A22B, bfloat16", 94, 94, 128, 4, 128),
    Model("Qwen3-235B-A22B, bfloat16, first of 4 or 8 ranks", 94, 94, 128, 1, 128),
    Model("GPT-OSS-120B, bfloat16, full-attention layers only", 18, 36, 128, 8, 64),
)


@click.command(context_settings={"show_default": True})
@click.option("--rounds", type=click.IntRange(3), default=16, help="Rounds per line of the table.")
def main(*, rounds: int) -> None:
    """Measure, and write docs/benchmarks/engine.md."""
    found = subprocess.run(
        [str(ROOT / "hack" / "vllm" / "install")], stdout=subprocess.PIPE, text=True, check=True
    )
    environment = Path(found.stdout.strip())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder / "plugin")
        engines = {
            (role, plugin): Engine(
                f"{role}-{'with' if plugin else 'without'}",
                Setup(role=role, plugin=folder / "plugin" if plugin else None, model=MODEL),  # type: ignore[arg-type]
                environment,
                folder,
            )
            for plugin in (False, True)
            for role in ("prefill", "decode")
        }
        try:
            for engine in engines.values():
                engine.start()
            for engine in engines.values():
                wait_for(engine.ready, engine.name, 400, engine.tail)
            without, with_it = (Side(engines["prefill", p], engines["decode", p]) for p in (False, True))
            sides = (without, with_it)
            measure_prefill(sides, 64, 4)  # handshakes and first touches
            rows = [row(f"prefill, {n} tokens", measure_prefill(sides, n, rounds)) for n in PROMPTS]
            for batch in BATCHES:
                steps, whole = measure_decode(sides, batch, rounds)
                rows.append(row(f"decode step, batch {batch}", steps))
                rows.append(row(f"decode request, pull included, batch {batch}", whole))
        finally:
            for engine in engines.values():
                engine.stop()
    PAGE.write_text(page(rows))
    click.echo("\n".join(rows))
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

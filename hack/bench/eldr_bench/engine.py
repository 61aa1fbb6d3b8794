"""What the plug-in costs a real engine: the same requests to one with it and to one without it, in turns, in one run.

    .venv/bin/python -m eldr_bench.engine

runs pairs of vLLM engines on the CPU (``engine_steps.py``) and writes docs/benchmarks/engine.md.
"""

from __future__ import annotations

import contextlib
import itertools
import platform
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from eldr.engine.install import copy
from eldr_bench.engine_child import TOKENS, Child, Shape, Work
from eldr_bench.engine_memory import memory
from eldr_bench.machine import ROOT, revision, vllm_environment
from eldr_bench.proof import require

PAGE = ROOT / "docs" / "benchmarks" / "engine.md"
WARM_UP = 3
BATCHES = (1, 8)
MODE = "Scheduler, CPUModelRunner"
"""What schedules and computes on a CPU: synchronously, and model runner V1."""

SHAPES = (
    Shape("tiny: 4 layers x 64 experts, top-4, 4.4 M parameters, float32", "float32", (128, 512, 1536)),
    Shape(
        "2 layers of Qwen3-30B-A3B: 128 experts, top-8, 1.2 G parameters, bfloat16",
        "bfloat16",
        (128, 512),
        {
            "num_hidden_layers": 2,
            "hidden_size": 2048,
            "head_dim": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_local_experts": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    ),
)


def works(shape: Shape) -> list[Work]:
    """Return what is measured of a model."""
    prefill = [Work("kv_producer", 1, n, 1) for n in shape.prompts]
    return prefill + [Work("kv_consumer", n, 16, TOKENS) for n in BATCHES]


@contextlib.contextmanager
def pair(
    environment: Path, shape: Shape, role: str, folder: Path, turn: int
) -> Iterator[tuple[Child, Child]]:
    """Start an engine without and one with the plug-in, in an order that changes by turn."""
    with (folder / "engines.log").open("ab") as log, contextlib.ExitStack() as stack:
        found, modes = {}, set()
        for counting in (False, True) if turn % 2 else (True, False):
            child = Child(environment, shape, role, folder / "plugin" if counting else None, log)
            stack.callback(child.close)
            modes.add(child.begin())
            found[counting] = child
        require(modes == {MODE}, f"what schedules and computes is {modes}, not {MODE}")
        yield found[False], found[True]


def measure(environment: Path, shape: Shape, folder: Path, starts: int, rounds: int) -> dict[str, np.ndarray]:
    """Return CPU seconds of everything that is compared, each of shape (starts, rounds, 2)."""
    found: dict[str, np.ndarray] = {
        name: np.empty((starts, rounds, 2)) for work in works(shape) for name in work.names()
    }
    for start, role in itertools.product(range(starts), ("kv_producer", "kv_consumer")):
        with pair(environment, shape, role, folder, start) as engines:
            for work in (work for work in works(shape) if work.role == role):
                for turn in range(-WARM_UP, rounds):
                    for which in (0, 1) if turn % 2 else (1, 0):
                        spent = engines[which].run(work, turn + WARM_UP)
                        if turn >= 0:
                            for name, seconds in zip(work.names(), spent, strict=True):
                                found[name][start, turn, which] = seconds
    return found


def row(name: str, seconds: np.ndarray) -> str:
    """Return a line of the table."""
    ratios = np.median(seconds[..., 1] / seconds[..., 0], axis=1)
    added = np.median(seconds[..., 1] - seconds[..., 0], axis=1) * 1e3
    without = np.median(seconds[..., 0]) * 1e3
    return (
        f"| {name} | {without:.2f} | {np.median(added):+.2f} ({added.min():+.2f} .. {added.max():+.2f}) "
        f"| {np.median(ratios):.3f} ({ratios.min():.3f} .. {ratios.max():.3f}) |"
    )


def page(tables: Mapping[str, list[str]], starts: int, rounds: int) -> str:
    """Return the page."""
    lines = [
        "# What the plug-in costs a real engine",
        "",
        f"`make bench-engine` on {datetime.now(UTC).date()}, {revision()}: vLLM 0.32 on a CPU ({platform.machine()}), one thread, no compilation,",
        f"synchronous scheduling and model runner V1 ({MODE}).",
        "An engine with the plug-in and one without it got the same requests in turns, each in a process of its own that holds scheduler,",
        "model and hooks, without HTTP server and transport. Compared is the CPU time that the process used, which other programs disturb",
        "less than the clock. Two processes differ by a few per cent even when they run the same, so that the engines were started",
        f"{starts} times: each start gives the median of {rounds} turns, and the table the median of the starts, with the smallest and the largest.",
        "What a decode step adds is nearly the same for 1 and 8 requests (a report, statistics, small tensor operations), so that it weighs",
        "most where steps are as short as the tiny model's. What the counting alone takes: [kernels](kernels.md).",
        "",
    ]
    for name, rows in tables.items():
        lines += [
            f"## {name}",
            "",
            "| | without (ms) | added (ms) | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join([*lines, *memory()])


@click.command(context_settings={"show_default": True})
@click.option("--starts", type=click.IntRange(1), default=4, help="How often the engines are started.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Turns per start.")
def main(*, starts: int, rounds: int) -> None:
    """Measure, and write docs/benchmarks/engine.md."""
    environment = vllm_environment()
    tables = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder / "plugin")
        for shape in SHAPES:
            try:
                measured = measure(environment, shape, folder, starts, rounds)
            except RuntimeError:
                click.echo((folder / "engines.log").read_text(errors="replace")[-4000:], err=True)
                raise
            tables[shape.name] = [row(*figure) for figure in measured.items()]
            click.echo("\n".join([shape.name, *tables[shape.name]]))
    PAGE.write_text(page(tables, starts, rounds))
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

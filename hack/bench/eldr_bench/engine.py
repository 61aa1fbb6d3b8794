"""What the plug-in costs a real engine: the same requests to one with it and to one without it, in turns, in one run.

    .venv/bin/python -m eldr_bench.engine

runs pairs of vLLM engines on the CPU (``engine_steps.py``) and writes docs/benchmarks/engine.md.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from eldr.engine.install import copy
from eldr_bench.engine_child import TOKENS, Kind, Setting, Shape, Work
from eldr_bench.engine_memory import memory
from eldr_bench.engine_pairs import PLUGIN, interval, measure
from eldr_bench.machine import ROOT, revision, vllm_environment
from eldr_bench.modes import PAGE, section

MOST_ADDED = 2.0
"""Percent of a decode step that the plug-in may take."""
BATCHES = (1, 8)
ON_CPU = {
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 16,
    "block_size": 32,
    "kv_cache_memory_bytes": 256 << 20,
    "enable_prefix_caching": False,
}
V2 = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
AHEAD = {"ELDR_CPU_ASYNC": "1"}
SETTINGS = (
    Setting("V1, synchronous", ON_CPU),
    Setting("V1, asynchronous", ON_CPU, AHEAD, "eldr_cpu"),
    Setting("V2, synchronous", ON_CPU, V2, "eldr_cpu"),
    Setting("V2, asynchronous", ON_CPU, V2 | AHEAD, "eldr_cpu"),
)
"""What a CPU can run; vLLM picks the first one there, and the last one on GPUs. Triton's kernels of V2 are interpreted."""

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


def row(name: str, seconds: np.ndarray) -> str:
    """Return a line of the table."""
    ratios = np.median(seconds[..., 1] / seconds[..., 0], axis=1)
    added = np.median(seconds[..., 1] - seconds[..., 0], axis=1) * 1e3
    without = np.median(seconds[..., 0]) * 1e3
    is_missed = name.startswith("decode step") and ratios.min() > 1 + MOST_ADDED / 100
    return (
        f"| {name} | {without:.2f} | {np.median(added):+.2f} ({added.min():+.2f} .. {added.max():+.2f}) "
        f"| {np.median(ratios):.3f} ({ratios.min():.3f} .. {ratios.max():.3f}){', aim missed' if is_missed else ''} |"
    )


def modes(python: Path, folder: Path, starts: int, rounds: int) -> list[str]:
    """Return lines of the table of modes: a decode step of either model."""
    work = Work("kv_consumer", max(BATCHES), 16, TOKENS)
    found = []
    for shape in reversed(SHAPES):
        for setting in SETTINGS:
            kind = Kind(python, shape, setting)
            seconds = measure(kind, [work], folder, starts=starts, rounds=rounds)[work.names()[0]]
            added, wide = interval(seconds)
            without = np.median(seconds[..., 0]) * 1e3
            more = np.median(seconds[..., 1] - seconds[..., 0]) * 1e3
            model = shape.name.partition(":")[0]
            found.append(
                f"| {model} | {setting.mode} | {without:.1f} | {more:+.2f} | {added:+.1f} ±{wide:.1f} | {aim(added, wide)} |"
            )
    return found


def aim(added: float, wide: float) -> str:
    """Return whether an interval, percent, meets the aim; one that holds 0 and more than the aim shows nothing."""
    if added + wide <= MOST_ADDED:
        return "met"
    return "missed" if added - wide > 0 else "includes 0"


def page(tables: Mapping[str, list[str]], in_modes: Sequence[str], starts: int, rounds: int) -> str:
    """Return the page."""
    lines = [
        "# What the plug-in costs a real engine",
        "",
        f"`make bench-engine` on {datetime.now(UTC).date()}, {revision()}: vLLM 0.32 on a CPU ({platform.machine()}), one thread, no compilation.",
        f"Except for the last table, the model runner is {SETTINGS[0].mode}.",
        "",
        "- An engine with the plug-in and one without it got the same requests in turns. Each is a process with scheduler,",
        "  model and hooks, without HTTP server and transport.",
        "- The tables compare the CPU time of the process, which other programs disturb less than the clock.",
        f"- Two equal processes differ by a few per cent, so the engines were started {starts} times. Each start gives the median of {rounds} turns. The tables",
        "  have the median of the starts, with the smallest and the largest.",
        "- The plug-in adds nearly the same to a decode step of 1 and of 8 requests: a report, statistics, small tensor operations. So it weighs most",
        f"  where steps are as short as the tiny model's. A decode step that misses the aim of {MOST_ADDED} % says so.",
        "- What the counting alone takes: [kernels](kernels.md).",
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
    lines += [
        "## By mode",
        "",
        f"A decode step, batch {max(BATCHES)}: the mean over {starts} starts with its 95 % interval (Student's t). The aim is *met* if the interval",
        f"ends below {MOST_ADDED} %, and *missed* if it lies above 0 and does not. One that *includes 0* and ends above {MOST_ADDED} % shows nothing: the two processes of a start",
        "differ by more than the cost in question. Each engine reports its model runner and scheduler, and the benchmark ends if these are not the ones asked for.",
        "",
        "A step of the tiny model is a tenth of any that is served: there the aim shows what the host does for a step, most of it the counting in",
        "operations of torch, which are one kernel on a GPU (`tests/engine/test_launches.py`).",
        "",
        "| model | mode | without (ms) | added (ms) | added (%) | aim |",
        "|---|---|---|---|---|---|",
        *in_modes,
        "",
    ]
    return "\n".join([*lines, *memory()]) + section(PAGE.read_text())


@click.command(context_settings={"show_default": True})
@click.option("--starts", type=click.IntRange(2), default=4, help="How often the engines are started.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Turns per start.")
def main(*, starts: int, rounds: int) -> None:
    """Measure, and write docs/benchmarks/engine.md."""
    python = vllm_environment() / "bin" / "python"
    tables = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder / PLUGIN)
        for shape in SHAPES:
            kind = Kind(python, shape, SETTINGS[0])
            measured = measure(kind, works(shape), folder, starts=starts, rounds=rounds)
            tables[shape.name] = [row(*figure) for figure in measured.items()]
            click.echo("\n".join([shape.name, *tables[shape.name]]))
        in_modes = modes(python, folder, starts, rounds)
        click.echo("\n".join(in_modes))
    PAGE.write_text(page(tables, in_modes, starts, rounds))
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

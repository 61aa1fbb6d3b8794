"""What the plug-in costs vLLM on a GPU, in the modes that vLLM picks there: stock engines and engines with it, in turns.

    .venv/bin/python -m eldr_bench.gpu_check --python PYTHON --model MODEL

needs a Python that has vLLM. Both engines lie on one GPU at a time, so a model may take two fifths of its memory; without ``--model``
layers of Qwen3-30B-A3B with random weights run, as many as ``--layers`` says. On a GPU it writes docs/benchmarks/gpu-check.md; ``--rehearse`` runs the same code on
a CPU, with the tiny model, and writes nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from eldr.engine.install import copy
from eldr_bench.engine import ON_CPU, SHAPES
from eldr_bench.engine_child import Kind, Setting, Shape, Work
from eldr_bench.engine_pairs import PLUGIN, interval, measure
from eldr_bench.machine import ROOT, revision

PAGE = ROOT / "docs" / "benchmarks" / "gpu-check.md"
ON_GPU = Setting(
    "",
    # the cache's size is said, not measured, as both engines start at the same time
    {"gpu_memory_utilization": 0.4, "kv_cache_memory_bytes": 4 << 30, "max_model_len": 4096},
    clock="perf_counter",
)
REHEARSAL = Setting("", ON_CPU, clock="perf_counter")
WORKS = (
    *(Work("kv_producer", 1, length, 1) for length in (512, 2048)),
    *(Work("kv_consumer", requests, 128, 64) for requests in (1, 8, 32, 64)),
)
REHEARSED = (Work("kv_producer", 1, 64, 1), Work("kv_consumer", 2, 16, 8))


def rows(found: dict[str, np.ndarray]) -> list[str]:
    """Return the lines of the table."""
    lines = []
    for name, seconds in found.items():
        added, wide = interval(seconds)
        lines.append(f"| {name} | {np.median(seconds[..., 0]) * 1e3:.2f} | {added:+.2f} ±{wide:.2f} |")
    return lines


def page(model: str, device: str, lines: Sequence[str], starts: int, rounds: int) -> str:
    """Return the page."""
    return "\n".join(
        [
            "# What the plug-in costs vLLM on a GPU",
            "",
            f"`make gpu-check` on {datetime.now(UTC).date()}, {revision()}: {model} on {device}, in the modes that vLLM picks by itself.",
            "A stock engine and one with the plug-in got the same requests in turns. Every answer of the latter was exact, or there were no figures.",
            f"Means over {starts} starts of the median of {rounds} turns, with 95 % intervals (Student's t).",
            "",
            "| what | stock (ms) | added (%) |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


def of_layers(shape: Shape, layers: int) -> Shape:
    """Return a model of random weights with another number of layers."""
    name = f"{layers} layers of Qwen3-30B-A3B, random weights"
    return replace(shape, name=name, overrides={**shape.overrides, "num_hidden_layers": layers})


def device(python: Path) -> str:
    """Return the GPU that an environment with vLLM can use, and the versions there; empty if there is none.

    Raises
    ------
    click.UsageError
        If it has no vLLM.
    """
    asked = """
import importlib.metadata as m, torch
vllm = m.version("vllm")
print(f"{torch.cuda.get_device_name()}, vLLM {vllm}, PyTorch {torch.__version__}" if torch.cuda.is_available() else "")
"""
    done = subprocess.run([python, "-P", "-c", asked], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.UsageError(
            f"--python {python}: it has no vLLM; install it there, or name an environment that has it"
        )
    return done.stdout.strip()


@click.command(context_settings={"show_default": True})
@click.option("--python", default="python3", help="Python of an environment with vLLM.")
@click.option("--model", help="Folder or name of a mixture of experts; random weights by default.")
@click.option("--layers", type=click.IntRange(1), default=2, help="Layers of the model with random weights.")
@click.option("--starts", type=click.IntRange(2), default=4, help="How often the engines are started.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Turns per start.")
@click.option("--rehearse", is_flag=True, help="Run on a CPU, with the tiny model, and write nothing.")
def main(*, python: str, model: str | None, layers: int, starts: int, rounds: int, rehearse: bool) -> None:
    """Measure what the plug-in costs; write docs/benchmarks/gpu-check.md where there is a GPU."""
    found = Path(shutil.which(python) or python)
    name = device(found)
    if not (name or rehearse):
        raise click.UsageError("there is no GPU that PyTorch can use; --rehearse runs the same code on a CPU")
    shape = SHAPES[0] if rehearse else of_layers(SHAPES[1], layers)
    if model:
        shape = Shape(model, "auto", (), model=model)
    kind = Kind(found, shape, REHEARSAL if rehearse else ON_GPU)
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder) / PLUGIN)
        wanted = REHEARSED if rehearse else WORKS
        seconds = measure(kind, wanted, Path(folder), starts=starts, rounds=rounds)
    lines = rows(seconds)
    click.echo("\n".join(lines))
    if rehearse:
        click.echo("a rehearsal: the code ran and every answer was exact; these times say nothing of GPUs")
        return
    PAGE.write_text(page(shape.name, name, lines, starts, rounds))
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

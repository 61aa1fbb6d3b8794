"""How the decode steps of a real engine follow their active experts: docs/benchmarks/steps.md and its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial

import click
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, TaskID

from eldr_bench.machine import ROOT, cpu_model, revision
from eldr_lab.steps.batches import measure
from eldr_lab.steps.engines import first_engine, prove
from eldr_lab.steps.law import Law, Steps, as_routers_learn_it, fit, medians, read
from eldr_lab.steps.machine import N_EXPERTS, WIDTH

PAGE = ROOT / "docs" / "benchmarks" / "steps.md"
FIGURES = ROOT / "docs" / "benchmarks" / "steps.json"
PICTURE = ROOT / "docs" / "images" / "steps.png"
DTYPES = ("float32", "bfloat16")
BATCHES = (4, 8, 16, 32)
TOKENS = 32


def page(found: Mapping[str, Steps], laws: Mapping[str, Law], version: str) -> str:
    """Return the page."""
    lines = [
        "# Steps of a real engine follow their active experts",
        "",
        f"`make -C hack/lab bench-steps` on {datetime.now(UTC).date()}, {revision()}: vLLM {version} on a CPU ({cpu_model()}), one thread, no compilation. The small trained model with",
        f"every expert widened to {WIDTH} units by weights that add nothing. Tokens and experts stay the same, but reading an expert costs",
        "as much as it does in a large model. Batches of one kind of text, of two, of all, and of copies of few requests, in random order.",
        "",
        "A step's time is the CPU time of its one thread at the machine's median speed. Others share the machine, and its speed changes by up to two",
        "within parts of a second. So a step that is always the same is measured alongside. Steps that prefill are left out.",
        "",
        "| | ms | R² | of batch alone | of batches' medians | steps |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for dtype, law in laws.items():
        fixed, expert, request = (1e3 * constant for constant in law.constants)
        lines.append(
            f"| {dtype} | T = {fixed:.1f} + {expert:.3f} A + {request:.3f} B | {law.r2:.3f} | {law.r2_batch:.3f} | {law.r2_medians:.3f} | {law.steps} |"
        )
    lines += [
        "",
        "A: distinct experts, mean over the layers; B: requests. What batch alone does not explain is experts: at a fixed batch",
        "size, steps differ by what their requests use.",
        "",
        "![Step time against active experts](../images/steps.png)",
        "",
        "| batch | requests | active experts | " + " | ".join(f"step, {dtype}, ms" for dtype in found) + " |",
        "|---:|---|---:|" + "---:|" * len(found),
    ]
    tables = {dtype: medians(steps) for dtype, steps in found.items()}
    first = next(iter(tables.values()))
    for key in sorted(first, key=lambda key: (key[0], first[key][0])):
        cells = " | ".join(f"{1e3 * table[key][1]:.1f}" if key in table else "" for table in tables.values())
        lines.append(f"| {key[0]} | {key[1]} | {first[key][0]:.1f} | {cells} |")
    lines += [
        "",
        "## What a router learns",
        "",
        "Routers see means over some seconds and know nothing of the batches. From means over ten of these steps each, their code learns:",
        "",
        "| | per expert, ms: this fit (95 %) | learned by the router's code (± 2 standard errors) |",
        "|---|---|---|",
    ]
    for dtype, steps in found.items():
        low, high = (1e3 * bound for bound in laws[dtype].intervals[1])
        constants, error = as_routers_learn_it(steps, N_EXPERTS)
        lines.append(
            f"| {dtype} | {1e3 * laws[dtype].constants[1]:.3f} ({low:.3f} .. {high:.3f}) | {1e3 * constants[1]:.3f} (± {2e3 * error:.3f}) |"
        )
    return "\n".join([*lines, ""])


def draw(found: Mapping[str, Steps], laws: Mapping[str, Law]) -> None:
    """Draw step times against active experts, one colour a batch size."""
    figure = Figure(figsize=(6 * len(found), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
    for axis, (dtype, steps) in zip(axes, found.items(), strict=True):
        fixed, expert, request = laws[dtype].constants
        for at, batch in enumerate(BATCHES):
            mine = steps.batch == batch
            colour = f"C{at}"
            axis.plot(
                steps.active[mine], 1e3 * steps.seconds[mine], ".", markersize=2, alpha=0.4, color=colour
            )
            span = np.array([steps.active[mine].min(), steps.active[mine].max()])
            line = 1e3 * (fixed + expert * span + request * batch)
            axis.plot(span, line, color=colour, linewidth=2)
            axis.annotate(
                f"batch {batch}",
                (span[1], line[1]),
                xytext=(4, 0),
                textcoords="offset points",
                color=colour,
                va="center",
            )
        usual = np.percentile(1e3 * steps.seconds, 99.5)
        axis.set(
            title=dtype,
            xlabel="active experts, mean over the layers",
            xlim=(0, N_EXPERTS + 8),
            ylim=(0, 1.15 * usual),
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("decode step, ms")
    figure.savefig(PICTURE, dpi=120)


@click.command("law", context_settings={"show_default": True})
@click.option("--dtype", "dtypes", multiple=True, default=DTYPES, help="Weights; repeatable.")
@click.option("--seed", default=0, help="Of prompts, order and sampling.")
def command(*, dtypes: tuple[str, ...], seed: int) -> None:
    """Measure, and write docs/benchmarks/steps.md."""
    found, laws, version = {}, {}, ""
    for dtype in dtypes:
        with first_engine(dtype, "steps.log") as engine, Progress(console=Console(stderr=True)) as bar:
            version = prove(engine.about(), dtype)
            task = bar.add_task(dtype)
            told = partial(_tell, bar, task)
            found[dtype] = read(list(measure(engine, list(BATCHES), TOKENS, seed, told)))
        law = laws[dtype] = fit(found[dtype], seed)
        fixed, expert, request = (1e3 * constant for constant in law.constants)
        click.echo(
            f"{dtype}: T = {fixed:.2f} + {expert:.3f} A + {request:.3f} B ms, R2 {law.r2:.3f} (batch alone {law.r2_batch:.3f}), {law.steps} steps"
        )
    PAGE.write_text(page(found, laws, version))
    FIGURES.write_text(json.dumps({dtype: asdict(law) for dtype, law in laws.items()}, indent=1) + "\n")
    draw(found, laws)
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


def _tell(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)

"""How the decode steps of a real engine follow their active experts: docs/benchmarks/steps.md and its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, TaskID

from eldr_bench.machine import ROOT, cpu_model, revision
from eldr_lab.report import filled, table
from eldr_lab.steps.batches import measure
from eldr_lab.steps.engines import first_engine, prove
from eldr_lab.steps.law import Law, Steps, as_routers_learn_it, fit, medians, read
from eldr_lab.steps.machine import N_EXPERTS, WIDTH

PAGE = ROOT / "docs" / "benchmarks" / "steps.md"
FIGURES = ROOT / "docs" / "benchmarks" / "steps.json"
PICTURE = ROOT / "docs" / "images" / "steps.png"
TEMPLATES = Path(__file__).with_name("templates")
DTYPES = ("float32", "bfloat16")
BATCHES = (4, 8, 16, 32)
TOKENS = 32


def page(found: Mapping[str, Steps], laws: Mapping[str, Law], version: str) -> str:
    """Return the page."""
    rows, learned = [], []
    for dtype, law in laws.items():
        shares = (f"{share:.3f}" for share in (law.r2, law.r2_batch, law.r2_medians))
        rows.append((dtype, formula(law), *shares, str(law.steps)))
        low, high = (1e3 * bound for bound in law.intervals[1])
        per_expert, error = as_routers_learn_it(found[dtype], N_EXPERTS)
        own = f"{1e3 * law.constants[1]:.3f} ({low:.3f} .. {high:.3f})"
        learned.append((dtype, own, f"{1e3 * per_expert:.3f} (± {2e3 * error:.3f})"))
    tables = {dtype: medians(steps) for dtype, steps in found.items()}
    first = next(iter(tables.values()))
    of_batches = [
        (
            str(key[0]), key[1], f"{first[key][0]:.1f}",
            *(f"{1e3 * one[key][1]:.1f}" if key in one else "" for one in tables.values()),
        )
        for key in sorted(first, key=lambda key: (key[0], first[key][0]))
    ]  # fmt: skip
    return filled(
        TEMPLATES / "steps.txt", date=datetime.now(UTC).date(), revision=revision(), version=version, machine=cpu_model(), width=WIDTH,
        laws=table(("", "ms", "R²", "of batch alone", "of batches' medians", "steps"), rows),
        medians=table(("batch", "requests", "active experts", *(f"step, {dtype}, ms" for dtype in found)), of_batches),
        learned=table(("", "per expert, ms: this fit (95 %)", "learned by the router's code (± 2 standard errors)"), learned),
    )  # fmt: skip


def formula(law: Law) -> str:
    """Return a fitted step time in milliseconds."""
    fixed, expert, request = (1e3 * constant for constant in law.constants)
    return f"T = {fixed:.1f} + {expert:.3f} A + {request:.3f} B"


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


@click.command()
def main() -> None:
    """Measure, and write docs/benchmarks/steps.md."""
    found, laws, version = {}, {}, ""
    for dtype in DTYPES:
        with first_engine(dtype, "steps.log") as engine, Progress(console=Console(stderr=True)) as bar:
            version = prove(engine.about(), dtype)
            task = bar.add_task(dtype)
            told = partial(_tell, bar, task)
            found[dtype] = read(list(measure(engine, list(BATCHES), TOKENS, 0, told)))
        law = laws[dtype] = fit(found[dtype])
        click.echo(f"{dtype}: {formula(law)} ms, R2 {law.r2:.3f} (batch alone {law.r2_batch:.3f})")
    PAGE.write_text(page(found, laws, version))
    FIGURES.write_text(json.dumps({dtype: asdict(law) for dtype, law in laws.items()}, indent=1) + "\n")
    draw(found, laws)
    click.echo(f"wrote {PAGE.relative_to(ROOT)}")


def _tell(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


if __name__ == "__main__":
    main()

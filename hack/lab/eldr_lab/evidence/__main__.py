"""``python -m eldr_lab.evidence``: what ``make -C hack/lab evidence`` runs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click

from eldr_bench.machine import ROOT, revision
from eldr_lab.evidence import cells, figures, grid, real, routing, strengths
from eldr_lab.evidence.document import FIRST, FOLDER, Beside, pages
from eldr_lab.evidence.results import Results
from eldr_lab.evidence.running import Plan, run

DOCS = ROOT / "docs"
RUNS = ROOT / "out" / "evidence.pickle"
SEEDS, MORE, CEILINGS = 4, 5, 3
FRESH = 6
"""The first seed that no constant was chosen under."""


def beside() -> Beside:
    """Return what was measured elsewhere, as far as it was."""
    return Beside(real.changes(), real.read(), routing.read(), strengths.read())


def write(results: Results, out: Path) -> Path:
    """Write the pages and their pictures into a folder, and return the first page's path."""
    images = out / "images" / "evidence"
    images.mkdir(parents=True, exist_ok=True)
    figures.draw(results, images)
    real.copy_pictures(out / "images")
    (out / FOLDER).mkdir(exist_ok=True)
    for name, text in pages(results, beside()).items():
        (out / name).write_text(text)
    return out / FIRST


@click.command(context_settings={"show_default": True})
@click.option("--smoke", is_flag=True, help="A few tiny cells: whether everything works, not what is true.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=SEEDS, help="Repetitions that intervals rest on."
)
@click.option(
    "--more",
    type=click.IntRange(0, 100),
    default=MORE,
    help="Further repetitions of the band against MarginalUnion, cell by cell.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="processors",
    help="Processes.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=DOCS,
    show_default="docs",
    help="Folder of the document.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Simulate nothing: write the document anew from the last runs (out/evidence.pickle) and what was measured on real engines since.",
)
def main(*, smoke: bool, seeds: int, more: int, jobs: int, out: Path, again: bool) -> None:
    """Simulate the paper's experiments and write docs/evidence.md and docs/evidence/."""
    if again:
        if not RUNS.exists():
            raise click.ClickException(
                f"{RUNS} does not exist: run make -C hack/lab evidence first, without AGAIN"
            )
        results = pickle.loads(RUNS.read_bytes())
        click.echo(f"written: {write(results, out)}")
        return
    chosen, size = (grid.smoke(), cells.SMOKE) if smoke else (grid.full(), cells.FULL)
    fresh = max(FRESH, seeds)
    plan = Plan(
        chosen, tuple(range(seeds)), size, tuple(range(fresh, fresh + more)),
        ceilings=min(CEILINGS, more), factors=strengths.factors(),
    )  # fmt: skip
    code = revision()
    if jobs == 1:
        found = run(plan, progress=_told)
    else:
        # a fresh interpreter: threads of the mathematics do not survive a fork
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as executor:
            found = run(plan, executor, _told)
    results = Results(plan, found, code)
    if not smoke:
        RUNS.parent.mkdir(exist_ok=True)
        RUNS.write_bytes(pickle.dumps(results))
    click.echo(f"written: {write(results, out)}")


def _told(done: int, of: int) -> None:
    click.echo(f"{done} of {of} groups of runs")


if __name__ == "__main__":
    main()

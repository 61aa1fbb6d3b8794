"""``python -m eldr_lab.evidence``: what ``make -C hack/lab evidence`` runs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click

from eldr_bench.machine import ROOT, revision
from eldr_lab.evidence import cells
from eldr_lab.evidence.pages import pages
from eldr_lab.evidence.running import Plan, Results, run
from eldr_lab.steps.policies_page import load, measured

DOCS = ROOT / "docs"
RUNS = ROOT / "out" / "evidence.pickle"
FRESH = 6
"""The first seed that no constant was chosen under."""


def write(results: Results, out: Path) -> None:
    """Write the pages into a folder."""
    (out / "evidence").mkdir(parents=True, exist_ok=True)
    engines = load()
    for name, text in pages(results, measured(engines) if engines else []).items():
        (out / name).write_text(text)


@click.command(context_settings={"show_default": True})
@click.option(
    "--smoke",
    is_flag=True,
    help="A few tiny cells, into out/smoke: whether everything works, not what is true.",
)
@click.option("--seeds", type=click.IntRange(1, 100), default=4, help="Repetitions that intervals rest on.")
@click.option(
    "--more",
    type=click.IntRange(0, 100),
    default=5,
    help="Further ones of policies that are compared cell by cell.",
)
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Processes.")
@click.option("--again", is_flag=True, help="Simulate nothing: write the pages from the last runs.")
def main(*, smoke: bool, seeds: int, more: int, jobs: int, again: bool) -> None:
    """Simulate the paper's main comparison and write docs/evidence.md and docs/evidence/."""
    if again:
        if not RUNS.exists():
            raise click.ClickException(
                f"{RUNS} does not exist: run make -C hack/lab evidence first, without AGAIN"
            )
        write(pickle.loads(RUNS.read_bytes()), DOCS)
        return
    chosen, size = (cells.smoke(), cells.SMOKE) if smoke else (cells.full(), cells.FULL)
    fresh = max(FRESH, seeds)
    plan, code = Plan(chosen, tuple(range(seeds)), size, tuple(range(fresh, fresh + more))), revision()
    # a fresh interpreter: threads of the mathematics do not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as executor:
        found = run(plan, executor, lambda done, of: click.echo(f"{done} of {of} groups of runs"))
    results = Results(plan, found, code)
    if not smoke:
        RUNS.parent.mkdir(exist_ok=True)
        RUNS.write_bytes(pickle.dumps(results))
    write(results, ROOT / "out" / "smoke" if smoke else DOCS)


if __name__ == "__main__":
    main()

"""What placement does to real engines: docs/benchmarks/policies.md, its figures as JSON, and its picture."""

from __future__ import annotations

import json
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from eldr_bench.machine import ROOT
from eldr_lab.steps import policies_page
from eldr_lab.steps.engines import first_engine
from eldr_lab.steps.pace import Pace
from eldr_lab.steps.pools import Comparison, Setting
from eldr_lab.steps.traffic import make_traffic

POLICIES = ("JSQ", "ELDR", "MarginalUnion", "MarginalUnion:prior=0.23")
CALIBRATION = 108


@click.command("policies", context_settings={"show_default": True})
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", help="Weights.")
@click.option(
    "--requests",
    type=click.IntRange(160),
    default=200,
    help="Measured in each trace, pool and under each policy.",
)
@click.option("--traces", type=click.IntRange(1, 20), default=2, help="Draws of arrivals, one after another.")
@click.option(
    "--engines", "pools", multiple=True, type=click.IntRange(2, 8), default=(2, 4), help="Repeatable."
)
@click.option("--batch", type=click.IntRange(2, 32), default=12, help="Mean number of requests of an engine.")
@click.option("--prompts", type=click.IntRange(64), default=180, help="Different ones.")
@click.option("--seed", default=0, help="Of prompts, the first trace's arrivals and sampling.")
def command(
    *, dtype: str, requests: int, traces: int, pools: tuple[int, ...], batch: int, prompts: int, seed: int
) -> None:
    """Serve the same requests under every policy, and write docs/benchmarks/policies.md."""
    # the larger pool once more, with the number in flight held: there a faster pool serves more
    settings = [Setting(n, batch, requests, holds=False) for n in pools]
    settings.append(Setting(max(pools), batch, requests, holds=True))
    found: list[policies_page.Json] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        first_engine(dtype, "policies.log") as engine,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task("recording requests", total=CALIBRATION + prompts)
        traffic = make_traffic(engine, CALIBRATION, prompts, seed, lambda n: progress.advance(task, n))
        pace = Pace(engine.reference)
        for setting in settings:
            name = f"{setting.engines} engines, {'in flight held' if setting.holds else 'Poisson arrivals'}"
            task = progress.add_task(name, total=1.0)
            told = partial(_tell, progress, task)
            done = Comparison(traffic, setting, POLICIES, range(seed, seed + traces)).run(engine, pace, told)
            found.append(policies_page.pool_json(done))
            for row in policies_page.table(found[-1]):
                progress.console.print(row, markup=False, soft_wrap=True)
            # after every pool: half an hour is long enough for something to end this
            _write(policies_page.as_json(found, traffic, dtype, pace.factors))
    click.echo(f"wrote {policies_page.PAGE.relative_to(ROOT)}")


def _write(results: policies_page.Json) -> None:
    policies_page.FIGURES.write_text(json.dumps(results, indent=1) + "\n")
    policies_page.PAGE.write_text(policies_page.page(results))
    policies_page.draw(results)


def _tell(progress: Progress, task: TaskID, part: float) -> None:
    progress.update(task, completed=part)

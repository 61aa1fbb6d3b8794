"""What placement does to real engines: docs/benchmarks/policies.md, its figures as JSON, and its picture."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from eldr_bench.machine import ROOT, cpu_model, revision, vllm_environment
from eldr_bench.proof import require
from eldr_lab.steps import policies_figures, policies_page
from eldr_lab.steps.batches import measure
from eldr_lab.steps.engines import first_engine, prove
from eldr_lab.steps.law import fit, read
from eldr_lab.steps.law_bench import BATCHES, TOKENS
from eldr_lab.steps.measured_with import key
from eldr_lab.steps.pace import Pace
from eldr_lab.steps.pools import Setting, Trace
from eldr_lab.steps.start import Start, begin, digest
from eldr_lab.steps.store import Json, Store, alone
from eldr_lab.steps.traffic import make_traffic

POLICIES = tuple(policies_figures.NAMES)
CALIBRATION = 108
RESULTS = ROOT / "out" / "policies.jsonl"


@click.command("policies", context_settings={"show_default": True})
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", help="Weights.")
@click.option(
    "--requests",
    type=click.IntRange(60),
    default=120,
    help="Measured in each trace, pool and under each policy.",
)
@click.option(
    "--traces",
    type=click.IntRange(1, 40),
    default=policies_figures.LEAST,
    help="Draws of arrivals; each runs in all pools before the next one.",
)
@click.option(
    "--engines", "pools", multiple=True, type=click.IntRange(2, 8), default=(2, 4), help="Repeatable."
)
@click.option("--batch", type=click.IntRange(3, 32), default=12, help="Mean number of requests of an engine.")
@click.option("--prompts", type=click.IntRange(64), default=180, help="Different ones.")
@click.option("--seed", default=0, help="Of prompts, the first trace's arrivals and sampling.")
def command(
    *, dtype: str, requests: int, traces: int, pools: tuple[int, ...], batch: int, prompts: int, seed: int
) -> None:
    """Serve the same requests under every policy, trace by trace, and write docs/benchmarks/policies.md.

    A finished trace of a pool is stored at once in out/policies.jsonl; another call goes on with those that are missing.
    """
    # the larger pool once more, with the number in flight held: there a faster pool serves more
    settings = [Setting(n, batch, requests, holds=False) for n in pools]
    settings.append(Setting(max(pools), batch, requests, holds=True))
    setting = f"{dtype}, batch {batch}, {requests} requests, {prompts} prompts, {CALIBRATION} to fit, seed {seed}, {' '.join(POLICIES)}"
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with alone(RESULTS), Progress(*columns, console=Console(stderr=True)) as progress:
        store = Store(RESULTS, key(vllm_environment(), setting))
        for why in store.left_out:
            progress.console.print(why, markup=False, soft_wrap=True)
        done = {_which(row) for row in store.rows if "found" in row}
        plan = [(seed + at, one) for at in range(traces) for one in settings]
        todo = [(trace, one) for trace, one in plan if (trace, one) not in done]
        if todo:
            _measure(store, todo, progress, dtype=dtype, prompts=prompts, seed=seed)
        if not any("batches" in row for row in store.rows):
            _measure_batches(store, progress, dtype, seed)
    _publish(store, plan, dtype, prompts)


def _measure(
    store: Store, todo: list[tuple[int, Setting]], progress: Progress, *, dtype: str, prompts: int, seed: int
) -> None:
    commit = revision()  # now: the checkout may change while hours of measurements run what is loaded
    with first_engine(dtype, "policies.log") as engine:
        version = prove(engine.about(), dtype)
        task = progress.add_task("recording requests", total=CALIBRATION + prompts)
        traffic = make_traffic(engine, CALIBRATION, prompts, seed, partial(progress.advance, task))
        started = next((Start.from_json(row["start"]) for row in store.rows if "start" in row), None)
        pace = Pace(engine.reference, started.usual if started else None)
        if started is None:
            started = begin(engine, traffic, todo[0][1].batch, pace, seed)
            store.add({"start": started.as_json(), "kinds": list(traffic.kinds), "vllm": version})
        require(
            started.traffic == digest(traffic), "requests do not do what they did when the first trace ran"
        )
        for trace, setting in todo:
            name = f"trace {trace}, {setting.engines} engines, {'in flight held' if setting.holds else 'Poisson arrivals'}"
            task = progress.add_task(name, total=1.0)
            began, asked = time.monotonic(), len(pace.factors)
            told = partial(_tell, progress, task)
            found = Trace(traffic, setting, started, trace).run(engine, POLICIES, pace, told)
            factors = pace.factors[asked:]
            store.add({
                "setting": setting._asdict(), "trace": trace, "commit": commit, "date": datetime.now(UTC).date().isoformat(),
                "took": time.monotonic() - began, "slowness": [min(factors), max(factors)], "found": found,
            })  # fmt: skip
            progress.console.print(f"{name}: stored after {time.monotonic() - began:.0f} s", markup=False)


def _measure_batches(store: Store, progress: Progress, dtype: str, seed: int) -> None:
    """Fit the step-time model to batches as ``bench-steps`` has them, at the pace of the traces."""
    usual = float(_first(store, "start")["start"]["usual"])
    task = progress.add_task("batches of bench-steps")
    with first_engine(dtype, "policies.log") as engine:
        rows = measure(engine, list(BATCHES), TOKENS, seed, partial(_tell_of, progress, task))
        paced = [row._replace(seconds=row.seconds * usual / row.reference, reference=usual) for row in rows]
    store.add({"batches": asdict(fit(read(paced), seed))})


def _publish(store: Store, plan: list[tuple[int, Setting]], dtype: str, prompts: int) -> None:
    start = _first(store, "start")
    rows = [row for row in store.rows if "found" in row and _which(row) in plan]
    about = {
        "machine": cpu_model(),
        "vllm": start["vllm"],
        "dtype": dtype,
        "kinds": start["kinds"],
        "prompts": prompts,
        "reference": start["start"]["usual"],
        "batches": _first(store, "batches")["batches"],
    }
    results = policies_figures.as_json(about, rows)
    policies_figures.FIGURES.write_text(json.dumps(results, indent=1) + "\n")
    policies_page.PAGE.write_text(policies_page.page(results))
    policies_page.draw(results)
    click.echo(f"wrote {policies_page.PAGE.relative_to(ROOT)}")


def _first(store: Store, kind: str) -> Json:
    return next(row for row in store.rows if kind in row)


def _which(row: Json) -> tuple[int, Setting]:
    return int(row["trace"]), Setting(**row["setting"])


def _tell(progress: Progress, task: TaskID, part: float) -> None:
    progress.update(task, completed=part)


def _tell_of(progress: Progress, task: TaskID, done: int, of: int) -> None:
    progress.update(task, completed=done, total=of)

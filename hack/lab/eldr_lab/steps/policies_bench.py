"""What placement does to real engines: docs/benchmarks/policies.md, its figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from eldr_bench.machine import ROOT, cpu_model, revision, vllm_environment
from eldr_bench.proof import require
from eldr_lab.steps import policies_page
from eldr_lab.steps.engines import first_engine, prove
from eldr_lab.steps.pools import Setting, Trace
from eldr_lab.steps.start import Pace, Start, begin, digest
from eldr_lab.steps.store import Json, Store, alone
from eldr_lab.steps.traffic import make_traffic

POLICIES = tuple(policies_page.NAMES)
DTYPE = "float32"
POOLS, BATCH, REQUESTS = (2, 4), 12, 120
PROMPTS, CALIBRATION = 180, 108
RESULTS = ROOT / "out" / "policies.jsonl"


@click.command(context_settings={"show_default": True})
@click.option("--traces", type=click.IntRange(1, 40), default=policies_page.LEAST, help="Draws of arrivals.")
def main(*, traces: int) -> None:
    """Serve the same requests under every policy, trace by trace, and write docs/benchmarks/policies.md.

    A finished trace of a pool is stored at once in out/policies.jsonl; another call goes on with those that are missing.
    """
    measure_traces(traces, POOLS, BATCH, REQUESTS)


def measure_traces(traces: int, pools: Sequence[int], batch: int, requests: int) -> None:
    """Measure what is missing of so many traces, and write the page.

    Parameters
    ----------
    traces : int
        Each runs in all pools before the next one.
    pools : sequence of int
        Engines of each.
    batch : int
        Mean number of requests of an engine.
    requests : int
        Measured in each trace, pool and under each policy.
    """
    # the larger pool once more, with the number in flight held: there a faster pool serves more
    settings = [Setting(n, batch, requests, holds=False) for n in pools]
    settings.append(Setting(max(pools), batch, requests, holds=True))
    key = {
        "code": revision(),
        "vLLM": vllm_environment().name,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores, {platform.node()}",
        "setting": f"{DTYPE}, batch {batch}, {requests} requests, {PROMPTS} prompts, {CALIBRATION} to fit, {' '.join(POLICIES)}",
    }
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with alone(RESULTS), Progress(*columns, console=Console(stderr=True)) as progress:
        store = Store(RESULTS, key)
        for why in store.left_out:
            progress.console.print(why, markup=False, soft_wrap=True)
        done = {_which(row) for row in store.rows if "found" in row}
        plan = [(trace, one) for trace in range(traces) for one in settings]
        todo = [(trace, one) for trace, one in plan if (trace, one) not in done]
        if todo:
            _measure(store, todo, progress)
    _publish(store, plan)


def _measure(store: Store, todo: list[tuple[int, Setting]], progress: Progress) -> None:
    commit = revision()  # now: the checkout may change while hours of measurements run what is loaded
    with first_engine(DTYPE, "policies.log") as engine:
        version = prove(engine.about(), DTYPE)
        task = progress.add_task("recording requests", total=CALIBRATION + PROMPTS)
        traffic = make_traffic(engine, CALIBRATION, PROMPTS, 0, partial(progress.advance, task))
        started = next((Start.from_json(row["start"]) for row in store.rows if "start" in row), None)
        pace = Pace(engine.reference, started.usual if started else None)
        if started is None:
            started = begin(engine, traffic, todo[0][1].batch, pace, 0)
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


def _publish(store: Store, plan: list[tuple[int, Setting]]) -> None:
    start = next(row for row in store.rows if "start" in row)
    rows = [row for row in store.rows if "found" in row and _which(row) in plan]
    about = {
        "machine": cpu_model(),
        "vllm": start["vllm"],
        "dtype": DTYPE,
        "kinds": start["kinds"],
        "prompts": PROMPTS,
        "reference": start["start"]["usual"],
    }
    results = policies_page.as_json(about, rows)
    policies_page.FIGURES.write_text(json.dumps(results, indent=1) + "\n")
    policies_page.PAGE.write_text(policies_page.page(results))
    click.echo(f"wrote {policies_page.PAGE.relative_to(ROOT)}")


def _which(row: Json) -> tuple[int, Setting]:
    return int(row["trace"]), Setting(**row["setting"])


def _tell(progress: Progress, task: TaskID, part: float) -> None:
    progress.update(task, completed=part)


if __name__ == "__main__":
    main()

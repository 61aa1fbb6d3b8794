"""The command ``eldr simulate``."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eldr.fit import options as files
from eldr.fit.samples import FitError
from eldr.options import FiniteRange, of_cluster
from eldr.simulate import options, report, sources, text
from eldr.simulate.advice import MAPPING
from eldr.simulate.contenders import Contender
from eldr.simulate.drafts import Drafts
from eldr.simulate.engine import Limits
from eldr.simulate.outcome import Outcome
from eldr.simulate.setting import Setting
from eldr.simulate.step_times import STEP_TIMES
from eldr.simulate.study import Study, run_study
from eldr.threads import one_thread

_SAMPLES = 4000  # records of a log, as many as a fit takes
_WIDTH = 120  # of a table that goes to a file


@click.command("simulate", context_settings={"auto_envvar_prefix": "ELDR_SIMULATE", "show_default": True})
@click.option(
    "--log", "logs", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Signature log of your own traffic: a router's log directory or one segment; repeatable.",
)  # fmt: skip
@click.option(
    "--from-cluster",
    metavar="NAME",
    help="An EldrDeployment: its routers' logs, engines, policy and learned step time, read with your kubeconfig.",
)
@of_cluster
@click.option("--model", help="Served model whose records are used [default: the one with the most]")
@click.option(
    "--last-minutes",
    type=FiniteRange(0, min_open=True),
    help="Use only records from this long before the newest one.",
)
@click.option(
    "--workload", type=click.Choice(["task", "language", "captured"]),
    help="Requests instead of a log: synthetic kinds of tasks or languages, or captured activations [default: task]",
)  # fmt: skip
@click.option(
    "--engines",
    callback=options.numbers(int, 1, options.MOST_ENGINES),
    help="Decode engines; separate several values by commas [default: 16, or the deployment's]",
)
@click.option(
    "--rate",
    "rates",
    callback=options.numbers(float, 1e-6),
    help="Requests per second, separated by commas [default: the log's own, or what keeps a mean batch of 32]",
)
@click.option(
    "--step-time",
    help=f"Step time: {', '.join(STEP_TIMES)} or FIXED_MS,PER_EXPERT_US,PER_REQUEST_US.",
)
@click.option(
    "--policies",
    "contenders",
    callback=options.policies,
    help=f"NAME[:option=value]..., separated by commas; {MAPPING} [default: {sources.POLICIES}, or with the deployment's settings]",
)
@click.option(
    "--drafts",
    type=click.IntRange(0, 16),
    default=0,
    help="Tokens that engines draft in each step for each request, as MTP heads do.",
)
@click.option("--accepted", type=FiniteRange(0, 1), default=0.8, help="Share of drafts that are accepted.")
@click.option("--seconds", type=FiniteRange(1e-3), default=90.0, help="Measured time, simulated.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, help="Repetitions behind the intervals.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="processors",
    help="Processes.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), callback=files.writable,
              help="Write the report as JSON; - for standard output.")  # fmt: skip
def command(
    *,
    logs: tuple[Path, ...],
    from_cluster: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
    model: str | None,
    last_minutes: float | None,
    workload: str | None,
    engines: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    step_time: str | None,
    contenders: tuple[Contender, ...] | None,
    drafts: int,
    accepted: float,
    seconds: float,
    seeds: int,
    jobs: int,
    json_file: Path | None,
) -> None:
    """Predict what each placement policy would bring, before you change a deployment.

    Simulates a pool of decode engines step by step under the policies that the router runs. Requests are your own traffic (--log,
    --from-cluster) or one of three workloads. Every policy meets the same requests and is compared with JSQ.
    """
    options.check_requests(
        logs=bool(logs),
        from_cluster=from_cluster,
        workload=workload,
        only_of_logs={"--model": model, "--last-minutes": last_minutes},
        only_of_clusters={"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig},
        only_of_kinds={
            "--policies Domain": any(contender.name == "Domain" for contender in contenders or ())
        },
    )
    try:
        reading = sources.Reading(
            model=model,
            limit=_SAMPLES,
            last=math.inf if last_minutes is None else 60 * last_minutes,
            step_time=step_time,
        )
        if from_cluster:
            asked = sources.from_cluster(
                from_cluster, reading, namespace=namespace, context=context, kubeconfig=kubeconfig
            )
        elif logs:
            asked = sources.from_logs(list(logs), reading)
        elif workload == "captured":
            asked = sources.from_captured(step_time)
        else:
            asked = sources.synthetic(workload or "task", step_time)
    except FitError as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    settings = [
        Setting(
            engines=n,
            rate=rate,
            batch=None if rate else asked.batch,
            step_time=asked.step_time,
            speeds=asked.speeds,
            limits=Limits(),
            seconds=seconds,
            output_tokens=asked.output_tokens,
            sampled=asked.sampled,
            drafts=Drafts(drafts, accepted, timed=bool(from_cluster)),
        )
        for n in engines or (asked.engines,)
        for rate in rates or (None,)
    ]
    study = Study(asked.source, settings, contenders or options.parse_policies(asked.policies), range(seeds))
    try:
        outcomes = _run(study, jobs)
        report.check_numbers(outcomes)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except BrokenProcessPool as error:
        raise click.ClickException(
            "a process ended, most likely for want of memory: try fewer --jobs, or fewer records with --last-minutes"
        ) from error
    about = {
        "requests": asked.words,
        "step_time": asdict(asked.step_time),
        "notes": [*asked.notes, *report.notes(asked.distinct, outcomes, study)],
    }
    figures = report.as_json(study, outcomes, about)
    document = json.dumps(figures, indent=2)
    if json_file is not None and str(json_file) != "-":
        json_file.write_text(document + "\n")
    if json_file is not None and str(json_file) == "-":
        click.echo(document)
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH)
        text.print_text(figures, console)


def _run(study: Study, jobs: int) -> list[Outcome]:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=study.runs)

        def update(done: int) -> None:
            progress.update(task, completed=done)

        if jobs == 1 or study.runs == 1:
            return run_study(study, progress=update)
        one_thread()  # of the processes below: one core each
        executor = ProcessPoolExecutor(min(jobs, study.runs), mp_context=multiprocessing.get_context("spawn"))
        try:
            return run_study(study, executor=executor, progress=update)
        finally:
            executor.shutdown(cancel_futures=True)

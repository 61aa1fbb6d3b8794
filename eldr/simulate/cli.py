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
from typing import get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eldr.fit import options as files
from eldr.fit.samples import FitError
from eldr.simulate import objective as objectives
from eldr.simulate import options, picture, report, sources, text
from eldr.simulate.advice import MAPPING
from eldr.simulate.contenders import Contender, parse_contender
from eldr.simulate.engine import Limits
from eldr.simulate.laws import LAWS, after
from eldr.simulate.objective import Objective
from eldr.simulate.outcome import Outcome
from eldr.simulate.replicas import Balance, Placing
from eldr.simulate.setting import ArrivalTimes, Setting
from eldr.simulate.study import Study, run_study
from eldr.simulate.synthetic import GEOMETRIES
from eldr.simulate.workload import Prefill
from eldr.threads import one_thread

GEOMETRY = "qwen3-30b"
_WIDTH = 120  # of a table that goes to a file
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("simulate", context_settings={"auto_envvar_prefix": "ELDR_SIMULATE", "show_default": True})
@click.option(
    "--log", "logs", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Signature log of your own traffic: a router's log directory or one segment; repeatable.",
)  # fmt: skip
@click.option(
    "--from-cluster",
    metavar="NAME",
    help="Logs of the routers of an EldrDeployment, with your kubeconfig; its engines, policy, tau and learned law unless told.",
)
@click.option("--namespace", help="Namespace of the deployment [default: the context's].")
@click.option("--context", help="Context of the kubeconfig [default: the current one].")
@click.option("--model", help="Served model whose records are used; by default the one with the most.")
@click.option(
    "--max-samples", type=click.IntRange(2), default=4000, help="Records kept of logs, chosen uniformly."
)
@click.option(
    "--last-minutes",
    type=files.FiniteRange(0, min_open=True),
    help="Only records of so long before the newest one of the logs.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "logged"]),
    default="poisson",
    help="Requests of a log come at random, or with the gaps and in the order of the log, at its own rate unless told.",
)
@click.option(
    "--workload", type=click.Choice(["task", "language", "captured"]),
    help="Requests instead of a log: synthetic kinds of tasks or languages, or captured activations.",
)  # fmt: skip
@click.option(
    "--geometry",
    type=click.Choice(list(GEOMETRIES)),
    help=f"Model of a synthetic workload [default: {GEOMETRY}]",
)
@click.option(
    "--engines",
    callback=options.numbers(int, 1, options.MOST_ENGINES),
    help="Decode engines, several separated by commas [default: 16, or the deployment's]",
)
@click.option(
    "--rate", "rates", callback=options.numbers(float, 1e-6), help="Requests per second, separated by commas."
)
@click.option(
    "--batch",
    "batches",
    callback=options.numbers(float, 1, 8192),
    help="Mean batch per engine instead of a rate [default: 32; the log's own rate with --from-cluster, --arrivals logged]",
)
@click.option(
    "--law",
    help=f"Step time: {', '.join(LAWS)} or FIXED_MS,PER_EXPERT_US,PER_REQUEST_US.",
)
@click.option(
    "--speeds",
    callback=options.numbers(float, 1e-3, 1e3, distinct=False),
    help="Times as long as the law, engine after engine, repeated [default: 1, or as the deployment's routers have learned]",
)
@click.option(
    "--policies",
    "contenders",
    callback=options.policies,
    help=f"NAME[:option=value]..., separated by commas; {MAPPING} [default: {sources.POLICIES}, or with the deployment's settings]",
)
@click.option(
    "--tau", "taus", callback=options.numbers(float, 0, 2), help="Adds ELDR with these widths of the band."
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=3, help="Repetitions that intervals rest on.")
@click.option(
    "--seconds",
    type=files.FiniteRange(1e-3),
    default=90.0,
    help="Measured time, simulated.",
)
@click.option(
    "--warmup",
    type=files.FiniteRange(0),
    help="Time before, simulated [default: two stays of a request, one of the longest]",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(2),
    help="Length of answers [default: as logged; captured 96, synthetic 512]",
)
@click.option(
    "--unions",
    type=click.Choice(["expected", "sampled"]),
    help="Active experts of steps [default: expected; captured sampled]",
)
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, help="Largest batch.")
@click.option("--kv-tokens", type=click.IntRange(1), help="KV cache per engine, tokens; without it no limit.")
@click.option(
    "--prefill",
    callback=options.prefill,
    help="ENGINES,FIXED_MS,PER_TOKEN_US; without it prompts take no time.",
)
@click.option(
    "--drift-at",
    type=files.FiniteRange(0),
    help="When the mix of kinds changes, seconds; measured is after it.",
)
@click.option("--routers", type=click.IntRange(1, 64), default=1, help="Routers that share the requests.")
@click.option(
    "--lag",
    type=files.FiniteRange(1e-3),
    default=0.25,
    help="How often routers tell each other, seconds.",
)
@click.option(
    "--cached",
    type=files.FiniteRange(0, 1),
    help="Share of every prompt that prefill engines find cached.",
)
@click.option(
    "--cached-counts",
    type=click.Choice(["known", "lost"]),
    default="known",
    help="Whether routers learn which experts cached tokens use, as from engines with the plug-in.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Ranks of each engine, with as many of the experts each; steps wait for the fullest [default: 1; qwen3-235b 4, deepseek-v3 8]",
)
@click.option("--spread/--no-spread", help="Deal the hot experts of each engine's cluster out to its ranks.")
@click.option(
    "--replication",
    type=files.FiniteRange(1, 8),
    help="Physical experts per expert on the ranks of each engine: some have replicas [default: 1]",
)
@click.option(
    "--balance",
    type=click.Choice(get_args(Balance)),
    help="Which replica computes: by vLLM's hash of tokens, or METRO's fewest experts on the fullest rank [default: exact]",
)
@click.option(
    "--placed-by",
    type=click.Choice(get_args(Placing)),
    help="What experts and replicas are placed on ranks by; tokens as vLLM's EPLB does [default: activations, with --replication]",
)
@click.option(
    "--decision",
    type=files.FiniteRange(0),
    default=0.0,
    help="What choosing replicas takes on each layer, us: the kernel, and a collective where ranks have different requests.",
)
@click.option(
    "--objective",
    callback=options.objective,
    help="P50=MS, P95=MS, P99=MS or mean=MS per token: the rate up to which each policy keeps it and the pool keeps up "
    "(at most 1 % of the requests find no room, prefill engines are not saturated), between the --rate given.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="processors",
    help="Processes.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), callback=files.writable,
              help="Write the report as JSON; - for standard output.")  # fmt: skip
@click.option(
    "--picture", "picture_file", type=_FILE, callback=files.picture, help="Draw the report as PNG or SVG."
)
def command(
    *,
    logs: tuple[Path, ...],
    from_cluster: str | None,
    namespace: str | None,
    context: str | None,
    model: str | None,
    max_samples: int,
    last_minutes: float | None,
    arrivals: ArrivalTimes,
    workload: str | None,
    geometry: str | None,
    engines: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    batches: tuple[float, ...] | None,
    law: str | None,
    speeds: tuple[float, ...] | None,
    contenders: tuple[Contender, ...] | None,
    taus: tuple[float, ...] | None,
    seeds: int,
    seconds: float,
    warmup: float | None,
    output_tokens: int | None,
    unions: str | None,
    max_num_seqs: int,
    kv_tokens: int | None,
    prefill: Prefill | None,
    drift_at: float | None,
    routers: int,
    lag: float,
    cached: float | None,
    cached_counts: str,
    ranks: int | None,
    spread: bool,
    replication: float | None,
    balance: Balance | None,
    placed_by: Placing | None,
    decision: float,
    objective: Objective | None,
    jobs: int,
    json_file: Path | None,
    picture_file: Path | None,
) -> None:
    """Say what each placement policy would bring, before any engine is touched.

    Simulates a pool of decode engines step by step under the policies that the router runs, on your own traffic (--log,
    --from-cluster) or on one of three workloads, and compares each with JSQ on the same requests.
    """
    options.check_requests(
        logs=bool(logs),
        from_cluster=from_cluster,
        workload=workload,
        only_of_logs={
            "--model": model,
            "--last-minutes": last_minutes,
            "--arrivals logged": arrivals == "logged",
        },
        only_of_clusters={"--namespace": namespace, "--context": context},
        only_of_synthetic={"--geometry": geometry},
        only_of_kinds={
            "--drift-at": drift_at,
            "--policies Domain": any(contender.name == "Domain" for contender in contenders or ()),
        },
    )
    if rates and batches:
        raise click.UsageError("--rate and --batch: choose one")
    replicas = options.replicas(replication, balance, placed_by, decision)
    if replicas is not None and unions == "expected":
        raise click.UsageError(
            "--unions expected: which replica computes is chosen step by step; use --unions sampled"
        )
    unions = unions or ("sampled" if replicas is not None else None)
    try:
        reading = sources.Reading(
            model=model,
            limit=max_samples,
            last=math.inf if last_minutes is None else 60 * last_minutes,
            law=law,
            speeds=speeds,
            ranks=ranks,
            arrivals=arrivals,
            sampled=unions == "sampled",
        )
        if from_cluster:
            asked = sources.from_cluster(from_cluster, reading, namespace=namespace, context=context)
        elif logs:
            asked = sources.from_logs(list(logs), reading)
        elif workload == "captured":
            asked = sources.from_captured(drifts=drift_at is not None, law=law, sampled=unions != "expected")
        else:
            asked = sources.synthetic(
                workload or "task", geometry or GEOMETRY, law=law, sampled=unions == "sampled"
            )
    except FitError as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    chosen = contenders or options.parse_policies(asked.policies)
    chosen = tuple(dict.fromkeys((*chosen, *(parse_contender(f"ELDR:tau={tau:g}") for tau in taus or ()))))
    law_of_steps = after(asked.law, asked.layers * decision * 1e-6)
    settings = [
        Setting(
            engines=n,
            rate=load if rates else None,
            batch=None if rates else load,
            law=law_of_steps,
            speeds=speeds or asked.speeds,
            limits=Limits(max_num_seqs, kv_tokens),
            ranks=ranks or asked.ranks,
            spread=spread,
            replicas=replicas,
            warmup=warmup,
            seconds=seconds,
            output_tokens=output_tokens or asked.output_tokens,
            sampled=asked.sampled,
            drift_at=math.inf if drift_at is None else drift_at,
            prefill=prefill,
            cache=options.cache(cached, lost=cached_counts == "lost", prefilled=prefill is not None),
            routers=routers,
            lag=lag,
            arrivals=arrivals,
        )
        for n in engines or (asked.engines,)
        for load in rates or batches or (asked.batch,)
    ]
    options.check(settings, objective, rates)
    study = Study(asked.source, settings, chosen, range(seeds))
    try:
        outcomes = _run(study, jobs)
        report.check_numbers(outcomes)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except BrokenProcessPool as error:
        raise click.ClickException(
            "a process ended, most likely for want of memory: try fewer --jobs or --max-samples"
        ) from error
    about = {
        "requests": asked.words,
        "law": asdict(law_of_steps),
        "notes": [*asked.notes, *report.notes(asked.distinct, outcomes, study)],
    }
    if objective is not None:
        about["objective"] = objectives.as_json(study, outcomes, objective)
    found = report.as_json(study, outcomes, about)
    if picture_file is not None:
        picture.draw(found, picture_file)
    document = json.dumps(found, indent=2)
    if json_file is not None and str(json_file) != "-":
        json_file.write_text(document + "\n")
    if json_file is not None and str(json_file) == "-":
        click.echo(document)
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH)
        text.print_text(found, console)


def _run(study: Study, jobs: int) -> list[Outcome]:
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=study.runs)

        def told(done: int) -> None:
            progress.update(task, completed=done)

        if jobs == 1 or study.runs == 1:
            return run_study(study, progress=told)
        one_thread()  # of the processes below: one core each
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(min(jobs, study.runs), mp_context=context)
        try:
            return run_study(study, executor=executor, progress=told)
        finally:
            executor.shutdown(cancel_futures=True)

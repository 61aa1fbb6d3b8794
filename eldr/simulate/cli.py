"""The command ``eldr simulate``."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TextIO

import click

from eldr.fit.samples import FitError
from eldr.kubeconfig import ClusterError
from eldr.options import FiniteRange, of_cluster
from eldr.simulate import report
from eldr.simulate.comparison import Setting, compare, usual_rate
from eldr.simulate.drafts import Drafts
from eldr.simulate.effect import InEffect, in_effect
from eldr.simulate.logged import read_logs
from eldr.simulate.policies import BASELINE, NAMES, USUAL, contenders
from eldr.simulate.step_times import STEP_TIMES, parse_step_time

_STEP_TIME = "qwen3-30b-mi300x"


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
    "--engines", type=click.IntRange(1, 1024), help="Decode engines [default: 16, or the deployment's]"
)
@click.option(
    "--rate",
    type=FiniteRange(1e-6),
    help="Requests per second [default: the deployment's, or what keeps a mean batch of 32]",
)
@click.option(
    "--step-time",
    help=f"Step time: {', '.join(STEP_TIMES)} or FIXED_MS,PER_EXPERT_US,PER_REQUEST_US "
    f"[default: what the deployment's routers have learned, or {_STEP_TIME}]",
)
@click.option(
    "--policy", "names", multiple=True, type=click.Choice(NAMES),
    help=f"Policy to compare with {BASELINE}, repeatable [default: {', '.join(USUAL)}, and the deployment's]",
)  # fmt: skip
@click.option(
    "--drafts",
    type=click.IntRange(0, 16),
    default=0,
    help="Tokens that engines draft in each step for each request, as MTP heads do.",
)
@click.option("--accepted", type=FiniteRange(0, 1), default=0.8, help="Share of drafts that are accepted.")
@click.option("--seconds", type=FiniteRange(1e-3), default=90.0, help="Measured time, simulated.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, help="Repetitions behind the intervals.")
@click.option("--json", "file", type=click.File("w", lazy=False), help="Write a JSON report instead of the text; - for standard output.")  # fmt: skip
def command(
    *,
    logs: tuple[Path, ...],
    from_cluster: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
    model: str | None,
    last_minutes: float | None,
    engines: int | None,
    rate: float | None,
    step_time: str | None,
    names: tuple[str, ...],
    drafts: int,
    accepted: float,
    seconds: float,
    seeds: int,
    file: TextIO | None,
) -> None:
    """Predict what each placement policy would bring, before you change a deployment.

    Simulates a pool of decode engines step by step under the policies that the router runs. Requests are your own traffic: --log or
    --from-cluster. Every policy meets the same requests and is compared with JSQ.
    """
    if bool(logs) == bool(from_cluster):
        raise click.UsageError(
            "name a log with --log, or a deployment with --from-cluster; `make demo` leaves a log in out/siglog"
        )
    own, last = InEffect(), 60 * (last_minutes or math.inf)
    try:
        if from_cluster:
            from eldr.simulate.cluster import read_deployment  # brings the client library

            with tempfile.TemporaryDirectory(prefix="eldr-simulate-") as folder:
                deployment = read_deployment(
                    from_cluster, Path(folder), context, namespace, str(kubeconfig) if kubeconfig else None
                )
                own = in_effect(deployment.resource, deployment.states)
                own = own._replace(notes=deployment.notes + own.notes)
                logged = read_logs(deployment.logs, model=model or own.model, last=last)
        else:
            logged = read_logs(logs, model=model, last=last)
        requests = logged.requests
        timed = own.step_time is not None and not step_time
        setting = Setting(
            step_time=replace(own.step_time, n_experts=requests.n_experts)
            if own.step_time and timed
            else parse_step_time(step_time or _STEP_TIME, requests.n_experts),
            speeds=tuple(islice(cycle(own.speeds), engines or own.engines)),
            rate=rate or (logged.rate or 0.0) / (own.share or math.inf),
            seconds=seconds,
            settings=own.settings,
            drafts=Drafts(drafts, accepted, timed),
        )
        if not setting.rate:
            setting = setting._replace(rate=usual_rate(requests, setting.step_times, setting.drafts))
        rows = contenders(names or own.policies)
        with click.progressbar(range(seeds), label="simulating", file=sys.stderr) as progress:
            outcomes = [compare(logged.calibration, requests, setting, rows, seed) for seed in progress]
    except (ClusterError, FitError) as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    figures = report.as_json(setting, rows, outcomes) | {"requests": own.words + logged.words}
    figures["notes"] = [*own.notes, *report.notes(figures, len(requests))]
    if not (timed or step_time):
        figures["notes"].append(f"the step time is {_STEP_TIME}; give your accelerator's with --step-time")
    click.echo(json.dumps(figures, indent=2) if file else "\n".join(report.as_text(figures)), file)

"""The command ``eldr fit``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from eldr import contract
from eldr.fit import options
from eldr.options import FiniteRange
from eldr.threads import one_thread

MAX_SAMPLES = 4000


@click.group("fit", context_settings={"auto_envvar_prefix": "ELDR_FIT", "show_default": True})
def command() -> None:
    """Turn a signature log into a centroid set."""


@command.command("log")
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--k", type=click.IntRange(1, 4096), required=True, help="Number of centroids: one per decode engine."
)
@click.option("--model", required=True, help="Served model name; records of other models are left out.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.writable,
    default="eldr.centroids",
    help="Centroid file.",
)
@click.option(
    "--active",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Set in use: compare, align.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=options.picture,
    help="Draw the report as PNG or SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--lookback-minutes",
    type=FiniteRange(0, min_open=True),
    help="Ignore older records.",
)
@click.option(
    "--max-samples", type=click.IntRange(2), default=MAX_SAMPLES, help="Records kept, chosen uniformly."
)
@click.option(
    "--tau",
    type=FiniteRange(0, 2),
    default=0.1,
    help="Band that the prediction assumes.",
)
@click.option("--seed", type=click.IntRange(0), default=1)
def log_command(**chosen: Any) -> None:
    """Fit the signature logs in directories LOGS and write a centroid file.

    Exits with 0 when the set was written, whatever the verdict; the report says whether it is better.
    """
    one_thread()  # two threads choose layers, and those of a BLAS would only wait for each other
    from eldr.fit.local import run

    run(**chosen)


@command.command("job")
@click.option("--namespace", required=True, help="Namespace of the deployment.")
@click.option("--deployment", required=True, help="Name of the EldrDeployment.")
@click.option("--fit", "fit_name", required=True, help="Name of the EldrFit that this run belongs to.")
@click.option("--fit-uid", required=True, help="Its uid: owner of what the run writes.")
@click.option(
    "--k", type=click.IntRange(1, 4096), required=True, help="Number of centroids: one per decode engine."
)
@click.option("--model", required=True, help="Served model name.")
@click.option(
    "--lookback-minutes",
    type=FiniteRange(0, min_open=True),
    help="Ignore older records.",
)
@click.option(
    "--since",
    type=options.Moment(),
    help="Ignore records before this time: Unix seconds, or ISO 8601 with its zone.",
)
@click.option(
    "--before",
    type=options.Moment(),
    help="Records from before this time are of other traffic, which may return: report how they compare with the new set.",
)
@click.option("--min-samples", type=click.IntRange(1), help="Fail where fewer records are usable.")
@click.option(
    "--admin-authority",
    type=click.Path(path_type=Path),
    help="PEM certificates of who signs those of admin ports; without it every certificate there is taken.",
)
@click.option("--seed", type=click.IntRange(0), default=1)
def job_command(*, fit_name: str, lookback_minutes: float | None, **plain: Any) -> None:
    """Run one EldrFit in a cluster.

    It reads the routers' logs, and writes ConfigMap shards and the report.

    Reads the bearer token of the routers' admin ports from ELDR_ADMIN_TOKEN.
    """
    token = os.environ.get(contract.ENV_ADMIN_TOKEN, "")
    if not token:
        raise click.UsageError(
            f"{contract.ENV_ADMIN_TOKEN} is empty: set it to the token of the routers' admin ports"
        )
    one_thread()
    from eldr.fit.job import Job, run

    lookback = None if lookback_minutes is None else lookback_minutes * 60
    job = Job(fit=fit_name, lookback=lookback, token=token, **plain)
    verdict = run(job, progress=lambda text: print(text, file=sys.stderr, flush=True))
    click.echo(f"{verdict['verdict']}: {verdict['message']}")

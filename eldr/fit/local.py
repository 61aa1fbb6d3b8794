"""A fit of logs in directories, its set written to a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.status import Status

from eldr.centroids import CentroidsError, CentroidSet, digest, dump, load
from eldr.fit import report as reports
from eldr.fit.pipeline import FitSettings, fit
from eldr.fit.samples import FitError, make_samples, reservoir
from eldr.fit.sources import from_directories
from eldr.fit.verdict import judge


def run(
    logs: tuple[Path, ...],
    *,
    k: int,
    model: str,
    out: Path,
    active: Path | None,
    picture: Path | None,
    as_json: bool,
    lookback_minutes: float | None,
    max_samples: int,
    tau: float,
    seed: int,
) -> None:
    """Fit, write the set, print the report of ``eldr fit log``.

    ClickException if no set can be made.
    """
    began = time.perf_counter()
    now = time.time()
    previous = _load_active(active)
    console = Console(stderr=True)
    since = 0.0 if lookback_minutes is None else now - lookback_minutes * 60
    try:
        with Status("reading logs", console=console) as status:
            rng = np.random.default_rng(seed)
            records, skipped = reservoir(
                from_directories(list(logs)), max_samples, rng, model=model, since=since
            )
            samples = make_samples(records, skipped)
            settings = FitSettings(k=k, model=model, seed=seed, tau=tau)
            result = fit(samples, settings, now=now, active=previous, progress=status.update)
    except FitError as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
    data = dump(result.centroids)
    out.write_bytes(data)
    compared = None if active is None else digest(active.read_bytes())
    report = reports.as_json(result, judge(result), time.perf_counter() - began, active=compared)
    report |= {"digest": digest(data)}
    if picture is not None:
        reports.draw(report, picture)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        reports.print_text(report, Console())
        click.echo(f"wrote {out}: {len(data)} bytes, {report['digest']}")


def _load_active(path: Path | None) -> CentroidSet | None:
    if path is None:
        return None
    try:
        return load(path.read_bytes())
    except CentroidsError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--active") from error

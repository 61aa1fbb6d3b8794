"""``python -m eldr_demo``: what ``make demo`` runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
from rich.console import Console

from eldr_demo import objects, report
from eldr_demo.run import Demo, DemoSettings
from eldr_kube.cluster import Cluster


@click.command(context_settings={"show_default": True})
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="out", help="Folder of the picture."
)
@click.option(
    "--measure", type=click.FloatRange(1), default=DemoSettings().measure, help="Seconds measured per phase."
)
@click.option("--rate", type=click.FloatRange(0.1), default=DemoSettings().rate, help="Requests per second.")
@click.option(
    "--speed", type=click.FloatRange(0.01), default=DemoSettings().speed, help="Step time of the engines."
)
def main(*, out: Path, measure: float, rate: float, speed: float) -> None:
    """Run the whole loop on this machine and print what it did."""
    console = Console(width=140)
    settings = DemoSettings(measure=measure, rate=rate, speed=speed)
    out.mkdir(parents=True, exist_ok=True)
    console.print("starting the control plane (the first time it is built from source: about five minutes)")
    with Cluster() as cluster:
        console.print("helm install eldr charts/eldr")
        cluster.helm(
            "install", "eldr", str(objects.CHART), "--set", "resyncSeconds=5", "--wait", "--timeout", "120s"
        )
        demo = Demo(objects.View(cluster), settings, console)
        failure: str | None = None
        try:
            asyncio.run(demo.run())
        except* Exception as group:  # noqa: BLE001 - whatever went wrong is shown below the table
            failure = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
        ok = summarise(demo, console, out, failure)
        console.print(cluster.kubectl("-n", objects.NAMESPACE, "get", "eldr,ef"), highlight=False)
        if not ok:
            console.print(
                cluster.kubectl("-n", objects.NAMESPACE, "get", "pods,jobs,events"), highlight=False
            )
    sys.exit(0 if ok else 1)


def summarise(demo: Demo, console: Console, out: Path, failure: str | None) -> bool:
    """Print the table, draw the picture, and tell whether everything happened without a failed request."""
    outcomes = demo.load.outcomes if hasattr(demo, "load") else []
    if demo.phases:
        rows = [report.measure(phase, outcomes, demo.sampler) for phase in demo.phases]
        console.print(report.table(rows))
        picture = out / "demo.png"
        report.draw(picture, demo.phases, outcomes, demo.sampler, demo.activations)
        console.print(f"picture: {picture}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    console.print(f"{len(outcomes)} requests, {len(failed)} failed", highlight=False)
    for outcome in failed[:10]:
        console.print(f"  {outcome.phase}: {outcome.error}", highlight=False)
    if failure:
        console.print(f"[red]did not finish:[/red] {failure}", highlight=False)
    return failure is None and not failed and bool(outcomes)


if __name__ == "__main__":
    main()

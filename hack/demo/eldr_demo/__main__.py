"""``python -m eldr_demo``: what ``make demo`` runs."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from eldr.options import FiniteRange
from eldr_bench.machine import revision
from eldr_demo import kept, objects, report
from eldr_demo.engines import Engines
from eldr_demo.picture import draw
from eldr_demo.real import RealEngines
from eldr_demo.run import Demo
from eldr_demo.simulated import SimulatedEngines
from eldr_kube import left
from eldr_kube.cluster import Cluster

_BUSY = 1.5
"""Load average of two processors above which engines, which need half of one, do not always get it."""


@click.command(context_settings={"show_default": True})
@click.option(
    "--engine",
    type=click.Choice(["sim", "vllm"]),
    default="sim",
    envvar="ENGINE",
    show_envvar=True,
    help="Simulated engines, or real vLLM on the CPU with a small trained model.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="out", help="Folder of the picture."
)
@click.option("--measure", type=FiniteRange(1), help="Seconds measured per phase.  [default: by engine]")
@click.option("--rate", type=FiniteRange(0.1), default=11.0, help="Requests per second, simulated engines.")
@click.option("--speed", type=FiniteRange(0.01), default=3.0, help="Step time of simulated engines.")
@click.option(
    "--gpu-mode",
    is_flag=True,
    envvar="GPU_MODE",
    show_envvar=True,
    help="Real engines with model runner V2 and asynchronous scheduling, as on GPUs; slow, so without the part in which traffic drifts.",
)
@click.option("--in-flight", type=click.IntRange(1), default=40, help="Requests at a time, real engines.")
def main(
    *,
    engine: str,
    out: Path,
    measure: float | None,
    rate: float,
    speed: float,
    gpu_mode: bool,
    in_flight: int,
) -> None:
    """Run the whole loop on this machine and print what it did."""
    console = Console(width=165)
    changes = {} if measure is None else {"measure": measure}
    engines: Engines = (
        RealEngines(in_flight=in_flight, gpu_mode=gpu_mode, **changes)
        if engine == "vllm"
        else SimulatedEngines(rate=rate, speed=speed, **changes)
    )
    # now: the checkout may change while the demo runs
    code = f"{revision()}, {datetime.now(UTC).date()}"
    out.mkdir(parents=True, exist_ok=True)
    console.print(_load("before"), highlight=False)
    console.print(
        "starting the control plane (the first time it is built from source: about 12 minutes on two cores)"
    )
    with Cluster(images=engines.images()) as cluster:
        console.print("helm install eldr charts/eldr -n eldr-system --create-namespace")
        release = ["eldr", str(objects.CHART), "-n", "eldr-system", "--create-namespace"]
        cluster.helm("install", *release, "--set", "resyncSeconds=5", "--wait", "--timeout", "120s")
        demo = Demo(objects.View(cluster), engines, console)
        failure: str | None = None
        try:
            asyncio.run(demo.run())
        except* Exception as group:  # noqa: BLE001 - whatever went wrong is shown below the table
            failure = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
        ok = summarise(demo, console, out, failure, code)
        known = engines.known
        if known and demo.phases:
            known = (*known, "--rate", f"{kept.rate(demo.phases, demo.load.outcomes):.3g}")
        told = kept.keep(str(cluster.kubeconfig), out / "siglog", demo.timeline.shifted or math.inf, known)
        console.print(told, highlight=False, markup=False, soft_wrap=True)
        console.print(cluster.kubectl("-n", objects.NAMESPACE, "get", "eldr,ef"), highlight=False)
        if not ok:
            console.print(left.keep(cluster, out / "failed"), highlight=False, markup=False, soft_wrap=True)
    sys.exit(0 if ok else 1)


def _load(when: str) -> str:
    """Return the load average; above ``_BUSY`` other programs take what engines need."""
    load = os.getloadavg()[0]
    warning = (
        ": [red]other programs use this machine, so that engines may be starved[/red]" if load > _BUSY else ""
    )
    return f"load average {when} the demo {load:.1f}{warning}"


def summarise(demo: Demo, console: Console, out: Path, failure: str | None, code: str) -> bool:
    """Print the table, draw the picture, and tell whether everything happened without a failed request."""
    outcomes = demo.load.outcomes if hasattr(demo, "load") else []
    if demo.phases:
        rows = report.measure(demo.phases, outcomes, demo.sampler, paced=demo.engines.paced)
        console.print(report.table(rows, demo.engines.title, code))
        for line in report.starved(rows):
            console.print(f"[red]{line}[/red]", highlight=False, soft_wrap=True)
        for line in demo.timeline.told():
            console.print(line, highlight=False, soft_wrap=True)
        if demo.engines.remark:
            console.print(demo.engines.remark, highlight=False)
        picture = out / "demo.png"
        draw(picture, demo.phases, outcomes, demo.sampler, demo.activations)
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

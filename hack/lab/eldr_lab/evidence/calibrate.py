"""``python -m eldr_lab.evidence.calibrate``: tune each model's strength of preference, and write ``strengths.json``."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor

import click

from eldr_lab.evidence import published, strengths
from eldr_lab.evidence.cells import BALANCERS, FULL, GEOMETRIES, RATES, Cell
from eldr_lab.evidence.results import BEST, P50, Results
from eldr_lab.evidence.running import Plan, run
from eldr_lab.evidence.strengths import Point, Tuned

_TRIED = (0.3, 0.45, 0.6, 0.75, 0.9, 1.05)
_SEEDS = (40, 41, 42, 43)
"""None of them is a seed of the tables."""
_WORKLOAD = "task"


def domain(geometry: str, factor: float, executor: Executor) -> float:
    """Return what Domain changes in P50 against the best balancer, mean over rates and seeds, percent."""
    cells = tuple(
        Cell(experiment="main", workload=_WORKLOAD, geometry=geometry, rate=rate, prefilled=True, policies=(*BALANCERS, "Domain"))
        for rate in RATES
    )  # fmt: skip
    plan = Plan(cells, _SEEDS, FULL, factors={geometry: factor})
    return Results(plan, run(plan, executor)).change(cells, "Domain", BEST, P50).mean


def tune(geometry: str, executor: Executor) -> Tuned:
    """Find a model's factor, and simulate Domain with it once more."""
    wanted = published.against_best(geometry, _WORKLOAD, "Domain", 0)
    tried = [Point(factor, domain(geometry, factor, executor)) for factor in _TRIED]
    factor = round(strengths.solved(tried, wanted), 2)
    return Tuned(
        factor=factor, found=round(domain(geometry, factor, executor), 2), published=round(wanted, 2)
    )


@click.command()
def main() -> None:
    """Tune every model."""
    found = {}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as executor:
        for geometry in GEOMETRIES:
            found[geometry] = tune(geometry, executor)
            click.echo(f"{geometry}: {found[geometry]}")
    strengths.FACTORS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

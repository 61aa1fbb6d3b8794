"""What a prior that routers learn themselves is worth, beside a fitted one and none: docs/benchmarks/prior.md.

    python -m eldr_lab.studies.prior [--seeds 10] [--only rest] [--again]

All policies of a seed meet the same requests. A call goes on where one ended.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from eldr_bench.machine import ROOT
from eldr_lab.evidence.cells import FULL, SMOKE, Size
from eldr_lab.evidence.strengths import factors, strengths
from eldr_lab.pool import models
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.study import prepare
from eldr_lab.studies import prior_page
from eldr_lab.studies.prior_cases import POLICIES, Case, cases, measure
from eldr_lab.synthetic.activations import Strengths, Synthetic

PAGE = ROOT / "docs" / "benchmarks" / "prior.md"
FIGURES = PAGE.with_suffix(".json")
FIRST_SEED = 300
"""No constant was chosen under this seed, or a later one."""
Known = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By case, seed, policy and quantity."""


def key(case: Case) -> str:
    """Return what figures of a case are found by: its own key, and how strong the preferences of its model are."""
    return f"{case.key},{factors()[case.geometry]:g}"


def run(todo: Sequence[Case], seeds: Sequence[int], size: Size, known: Known) -> Iterator[Known]:
    """Yield the figures, by case and seed, as they grow."""
    tuned = factors()
    # seed by seed, so that a call that is ended leaves whole ones
    for seed, (geometry, workload, popular) in itertools.product(
        seeds, dict.fromkeys(case.source for case in todo)
    ):
        own = [case for case in todo if case.source == (geometry, workload, popular)]
        missing = {case: POLICIES.keys() - known.get(key(case), {}).get(str(seed), {}).keys() for case in own}
        own = [case for case in own if missing[case]]
        if not own:
            continue
        kinds = strengths(workload, tuned[geometry])
        source = Synthetic(
            _popular(kinds, workload) if popular else kinds, models.GEOMETRIES[geometry],
            n_layers=size.layers, calibration=size.calibration, requests=size.requests,
        )  # fmt: skip
        prepared = prepare(
            source,
            seed,
            [case.engines for case in own],
            [parse_contender(name) for name in POLICIES.values()],
        )
        for case in own:
            found = measure(case, prepared, size, sorted(missing[case]))
            known.setdefault(key(case), {}).setdefault(str(seed), {}).update(found)
            yield known


def _popular(kinds: Strengths, workload: str) -> Strengths:
    return replace(kinds, shares=models.LATER[workload])


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(2), default=10, help="How many.")
@click.option("--only", multiple=True, help="Groups of cells.")
@click.option(
    "--most",
    type=float,
    default=float("inf"),
    help="Requests per second: cells with more are left for another call.",
)
@click.option("--again", is_flag=True, help="Write the page from the last figures.")
@click.option("--smoke", is_flag=True, help="Small runs, and nothing is written.")
def main(seeds: int, only: tuple[str, ...], most: float, *, again: bool, smoke: bool) -> None:
    """Simulate, and write the page."""
    known: Known = json.loads(FIGURES.read_text()) if FIGURES.exists() and not smoke else {}
    known = {name: found for name, found in known.items() if name in {key(case) for case in cases()}}
    todo = [case for case in cases() if (not only or case.group in only) and case.rate <= most]
    if not again:
        some = range(FIRST_SEED, FIRST_SEED + (2 if smoke else seeds))
        for found in run(todo, some, SMOKE if smoke else FULL, known):
            if not smoke:
                FIGURES.write_text(
                    json.dumps(found, indent=None, separators=(",", ":"), sort_keys=True) + "\n"
                )
            click.echo(f"{len(found)} cells", err=True)
    text = prior_page.page([(case, known[key(case)]) for case in cases() if key(case) in known])
    click.echo(text) if smoke else PAGE.write_text(text)


if __name__ == "__main__":
    main()

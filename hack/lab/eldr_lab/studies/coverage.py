"""How often the ranges in the demo's table would hold as confidence intervals: many simulated demos, each with other requests.

    python -m eldr_lab.studies.coverage [--traces 200]

A trace is a measured phase of the demo: its pool, rate, length and records, other arrivals and other draws. The truth is the change
over all traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click
import numpy as np

from eldr.sim import traces
from eldr.simulate.engine import Limits
from eldr.simulate.step_times import STEP_TIMES as LAWS
from eldr.simulate.workload import Window, Workload, poisson
from eldr_bench.proof import require
from eldr_demo import compare
from eldr_demo.simulated import MIXES, SimulatedEngines
from eldr_lab.synthetic.captured import Captured
from eldr_lab.synthetic.contenders import parse_contender
from eldr_lab.synthetic.population import Population
from eldr_lab.synthetic.run import Pool, Run, simulate
from eldr_lab.synthetic.workload import arranged

POLICIES = "JSQ", "MarginalUnion"
RATE, SPEED = 11.0, 3.0
"""Of the demo."""
Times = dict[int, float]
Method = Callable[[Times, Times], Mapping[str, compare.Change] | None]


def trace(population: Population, seed: int) -> tuple[Times, Times]:
    """Return the time per token of every request that decoded inside the measured span, by policy."""
    size = SimulatedEngines(rate=RATE, speed=SPEED).settings
    window = Window(size.settle, size.settle + size.measure, 0.0)
    rng = np.random.default_rng([seed, 20])
    arrival = poisson(RATE, window.end, rng)
    record = rng.integers(0, len(population), len(arrival))  # with replacement, as the demo draws
    tokens = np.full(len(arrival), size.tokens)
    workload = arranged(arrival, arrival, record, tokens, window)
    law = LAWS["qwen3-30b-mi300x"].for_experts(population.n_experts).scaled(SPEED)
    pool = Pool((law,) * size.decode, Limits(), sampled=True)
    first, second = (_run(pool, population, workload, window, name, seed) for name in POLICIES)
    require((first.worker != second.worker).any(), f"trace {seed}: both policies placed every request alike")
    return _times(first, workload, window), _times(second, workload, window)


def _run(  # noqa: PLR0917 - one of each
    pool: Pool, population: Population, workload: Workload, window: Window, name: str, seed: int
) -> Run:
    contender = parse_contender(name)
    return simulate(
        pool, population, workload, window, contender.policy({}), unions=contender.unions, seed=seed
    )


def _times(run: Run, workload: Workload, window: Window) -> Times:
    inside = np.flatnonzero((run.first >= window.warmup) & (run.end <= window.end))
    tpot = (run.end - run.first) / (workload.tokens - 1)
    return {int(number): float(tpot[number]) for number in inside}


class Coverage(NamedTuple):
    """Of one statistic: the share of ranges that hold the truth, their median width, and two standard deviations of the change."""

    share: float
    width: float
    spread: float


def covered(found: Sequence[tuple[Times, Times]], method: Method) -> dict[str, Coverage]:
    """Return how often a method's ranges hold the mean change over all traces, by statistic."""
    ranges = [one for pair in found if (one := method(*pair)) is not None]
    result = {}
    for name, statistic in compare.STATISTICS.items():
        changes = [_change(base, other, statistic) for base, other in found]
        truth = np.mean(changes)
        held = [one[name].low <= truth <= one[name].high for one in ranges]
        widths = [one[name].high - one[name].low for one in ranges]
        result[name] = Coverage(
            float(np.mean(held)), float(np.median(widths)), 2 * float(np.std(changes, ddof=1))
        )
    return result


def _change(base: Times, other: Times, statistic: compare.Statistic) -> float:
    common = sorted(base.keys() & other.keys())
    before, after = (float(statistic(np.array([one[n] for n in common]))) for one in (base, other))
    return after / before - 1.0


@click.command(context_settings={"show_default": True})
@click.option("--traces", "n", type=click.IntRange(10), default=200, help="Simulated demos.")
def main(n: int) -> None:
    """Simulate demos and print how often the table's intervals hold the truth."""
    captured = traces.load()
    population = Captured(captured, MIXES["first"]).traffic(0).requests
    found = [trace(population, seed) for seed in range(n)]
    click.echo(
        f"{n} traces of {np.mean([len(base) for base, _ in found]):.0f} requests, {POLICIES[1]} against {POLICIES[0]}"
    )
    for name, one in covered(found, compare.compare).items():
        click.echo(
            f"{name}: {100 * one.share:.0f} of a hundred ranges hold the mean change over all traces; median width "
            f"{100 * one.width:.1f} points; traces differ by ±{100 * one.spread:.1f} points (two standard deviations)"
        )


if __name__ == "__main__":
    main()

"""Run the cells: one process for each workload, model and seed.

All its cells share requests and centroids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import NamedTuple

from eldr.simulate.engine import Limits
from eldr.simulate.step_times import STEP_TIMES
from eldr_bench.proof import require
from eldr_lab.evidence.cells import (
    BALANCERS,
    DUELLISTS,
    GEOMETRIES,
    LATER,
    TUNED,
    UNLIKE,
    Cell,
    Size,
    strengths,
)
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.setting import Drift, Prefill, Setting
from eldr_lab.pool.study import run_whole
from eldr_lab.report import Interval, interval
from eldr_lab.synthetic.activations import Synthetic
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.run import Run
from eldr_lab.synthetic.study import meet, prepare

MOST = 512
"""Largest batch: none of the published loads comes near."""
PREFILL_ENGINES = 8
PARAMETERS = {"qwen3-30b": 3.3e9, "gpt-oss-120b": 5.1e9, "gemma-4-26b": 3.8e9}
"""Active ones per token; two operations each."""
FLOPS = 500e12
"""Operations per second that a prefill engine reaches: 38 % of an MI300X's peak with 16 bits."""
P50, P99, MEAN, STEP_EXPERTS = "tpot_p50", "tpot_p99", "tpot_mean", "active_per_step"
BEST = None
"""In place of a baseline: the best balancer of each cell."""


class Group(NamedTuple):
    """Cells that share requests and centroids."""

    workload: str
    geometry: str
    seed: int


Found = dict[tuple[Cell, str], Measures]
"""By cell and policy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is run.

    Attributes
    ----------
    cells : tuple of Cell
    seeds : tuple of int
        Of every cell and policy.
    size : Size
    more : tuple of int
        Other seeds, under which no constant was chosen, of the policies that are compared cell by cell.
    """

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    size: Size
    more: tuple[int, ...] = ()

    @property
    def groups(self) -> list[Group]:
        """Groups, those with most to do first."""
        kinds = dict.fromkeys((cell.workload, cell.geometry) for cell in self.cells)
        found = [Group(*kind, seed) for kind in kinds for seed in (*self.seeds, *self.more)]
        sizes = {group: sum(len(names) for _, names in self.of(group)) for group in found}
        return sorted(found, key=lambda group: (-sizes[group], group))

    def of(self, group: Group) -> list[tuple[Cell, tuple[str, ...]]]:
        """Return a group's cells, and the policies that are run there."""
        return [
            (
                cell,
                tuple(name for name in DUELLISTS if name in cell.policies)
                if group.seed in self.more
                else cell.policies,
            )
            for cell in self.cells
            if (cell.workload, cell.geometry) == group[:2]
        ]


def run(
    plan: Plan,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,  # noqa: ARG005
) -> dict[Group, Found]:
    """Run everything.

    Returns
    -------
    dict
        By group, in the plan's order, whatever ended first.
    """
    groups, found = plan.groups, dict[Group, Found]()
    if executor is None:
        for group in groups:
            found[group] = run_group(plan, group)
            progress(len(found), len(groups))
    else:
        futures = {executor.submit(run_group, plan, group): group for group in groups}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            progress(len(found), len(groups))
    return {group: found[group] for group in groups}


def run_group(plan: Plan, group: Group) -> Found:
    """Run one group's cells."""
    size, todo = plan.size, plan.of(group)
    source = Synthetic(
        strengths(group.workload, group.geometry), GEOMETRIES[group.geometry],
        n_layers=size.layers, calibration=size.calibration, requests=size.requests,
    )  # fmt: skip
    contenders = [parse_contender(name) for name in sorted({name for _, names in todo for name in names})]
    engines = sorted({cell.engines for cell, _ in todo})
    prepared = prepare(source, group.seed, engines, contenders)
    runs: Found = {}
    for cell, policies in todo:
        setting = setting_of(cell, size)
        load = meet(prepared, setting)
        whole = {name: run_whole(prepared, setting, parse_contender(name), load) for name in policies}
        prove(cell, whole)
        runs |= {(cell, name): one.measures for name, one in whole.items()}
    return runs


def prove(cell: Cell, runs: Mapping[str, Run]) -> None:
    """End the program if policies that know different things placed alike.

    That each did what its name says is proven where it ran, see :mod:`eldr_lab.pool.witness`.
    """
    for name, other in UNLIKE:
        if {name, other} <= runs.keys():
            differ = (runs[name].engine != runs[other].engine).any()
            require(differ, f"{name} placed every request as {other} did in {cell}")


def setting_of(cell: Cell, size: Size) -> Setting:
    """Return a cell's pool and load for the simulator.

    Nothing of the prefill stage is fitted: a prompt reads every expert once, as a decode step would, and computes.
    """
    law = STEP_TIMES[f"{cell.geometry}-mi300x"]
    prefill = Prefill(PREFILL_ENGINES, law.seconds(0, law.n_experts), 2 * PARAMETERS[cell.geometry] / FLOPS)
    return Setting(
        engines=cell.engines,
        rate=cell.rate,
        batch=None,
        step_time=law,
        speeds=cell.speeds,
        limits=Limits(max_num_seqs=MOST),
        seconds=size.seconds,
        output_tokens=size.output_tokens,
        sampled=False,
        drift=Drift(cell.drift_at, LATER[cell.workload]) if cell.drift_at < math.inf else None,
        prefill=prefill if cell.prefilled else None,
        routers=cell.routers,
        lag=cell.lag,
    )


@dataclass(frozen=True)
class Results:
    """Runs by group, and the code that ran."""

    plan: Plan
    found: Mapping[Group, Found]
    revision: str = ""

    def cells(self, *experiments: str, kind: tuple[str, str] | None = None) -> list[Cell]:
        """Return the cells of some experiments, of one model and workload or all."""
        return [
            cell
            for experiment in experiments
            for cell in self.plan.cells
            if cell.experiment == experiment and kind in (None, (cell.geometry, cell.workload))
        ]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Model and workload of the main cells, each once."""
        return list(dict.fromkeys((cell.geometry, cell.workload) for cell in self.cells("main")))

    def value(self, cell: Cell, name: str, measure: str, seed: int) -> float:
        """Return what a policy measured under one seed."""
        group = Group(cell.workload, cell.geometry, seed)
        return float(getattr(self.found[group][cell, name], measure))

    def best(self, cell: Cell, measure: str) -> str:
        """Return the balancer with the least mean."""
        known = [name for name in BALANCERS if name in cell.policies]
        return min(
            known, key=lambda name: sum(self.value(cell, name, measure, seed) for seed in self.plan.seeds)
        )

    def change(self, cells: Sequence[Cell], name: str, baseline: str | None, measure: str) -> Interval:
        """Return the relative difference, percent: of each seed the mean over the cells.

        A policy of :data:`eldr_lab.evidence.cells.TUNED` is judged under the plan's further seeds alone, where it has some.

        Parameters
        ----------
        cells : sequence of Cell
        name : str
        baseline : str or None
            ``BEST``: the best balancer of each cell, by its mean over the seeds.
        measure : str
        """
        others = [baseline or self.best(cell, measure) for cell in cells]
        seeds = [
            seed
            for seed in (*self.plan.seeds, *self.plan.more)
            if seed in self.plan.seeds or {name, *others} <= {*DUELLISTS}
        ]
        if {name, *others} & {*TUNED}:
            seeds = [seed for seed in seeds if seed in self.plan.more] or seeds
        return interval(
            [
                sum(
                    100 * (self.value(cell, name, measure, seed) / self.value(cell, other, measure, seed) - 1)
                    for cell, other in zip(cells, others, strict=True)
                )
                / len(cells)
                for seed in seeds
            ]
        )

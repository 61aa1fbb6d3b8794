"""Runs the cells: one process a workload, model and seed, whose requests and centroids all its cells share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from eldr.core.step_time import StepTime
from eldr.simulate.engine import Limits
from eldr_bench.proof import require
from eldr_lab.evidence import forms, step_laws
from eldr_lab.evidence.ceiling import best_schedule
from eldr_lab.evidence.cells import CEILING, DUELLISTS, DUELS, FITTED, PRIOR, UNLIKE, Cell, Size
from eldr_lab.evidence.prefilling import prefill
from eldr_lab.evidence.strengths import strengths
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.laws import LAWS
from eldr_lab.pool.models import GEOMETRIES, LATER
from eldr_lab.pool.prefix import PrefixCache
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import Load, Prepared, meet, prepare, run_whole
from eldr_lab.pool.workload import Drift
from eldr_lab.synthetic.activations import Synthetic
from eldr_lab.synthetic.measures import Measures
from eldr_lab.synthetic.run import Pool, Run

MOST = 512
"""Largest batch: none of the published loads comes near."""
_TYPICAL_ACTIVE = 100.0
"""Experts whose cost a flat law keeps as a constant."""


class Group(NamedTuple):
    """Cells that share requests and centroids; ``layers`` is 0 for as many as the plan's size says."""

    workload: str
    geometry: str
    seed: int
    layers: int = 0


class Found(NamedTuple):
    """What a group's cells measured, by cell and policy, and what its workload says."""

    group: Group
    runs: dict[tuple[Cell, str], Measures]
    facts: dict[str, float]


class Progress(Protocol):
    """Told of every group that is over."""

    def __call__(self, done: int, of: int) -> None:
        """Take how many are, and how many there are."""


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
        Other seeds, under which no constant was chosen, of those cells and policies that are compared one by one.
    ceilings : int
        How many of those have a ceiling, too.
    factors : mapping
        How strong preferences for kinds are, by model, see :mod:`eldr_lab.evidence.strengths`; 1 for those that are not named.
    """

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    size: Size
    more: tuple[int, ...] = ()
    ceilings: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def groups(self) -> list[Group]:
        """Groups, those with most to do first."""
        kinds = dict.fromkeys((cell.workload, cell.geometry, cell.layers or 0) for cell in self.cells)
        found = [
            Group(workload, geometry, seed, layers)
            for workload, geometry, layers in kinds
            for seed in (*self.seeds, *self.more)
        ]
        sizes = {group: sum(len(names) for _, names in self.of(group)) for group in found}
        return sorted((group for group in found if sizes[group]), key=lambda group: (-sizes[group], group))

    def of(self, group: Group) -> list[tuple[Cell, tuple[str, ...]]]:
        """Return a group's cells, and the policies that are run there."""
        cells = [
            cell
            for cell in self.cells
            if Group(cell.workload, cell.geometry, group.seed, cell.layers or 0) == group
        ]
        if group.seed in self.seeds:
            return [(cell, cell.policies) for cell in cells]
        return [(cell, self._again(cell, group.seed)) for cell in cells if cell.experiment in DUELS]

    def _again(self, cell: Cell, seed: int) -> tuple[str, ...]:
        """Return what a cell is run with under one of the further seeds."""
        names = tuple(name for name in DUELLISTS if name in cell.policies)
        capped = cell.experiment == "main" and seed in self.more[: self.ceilings]
        return (*names, CEILING) if capped else names


def run(
    plan: Plan,
    executor: Executor | None = None,
    progress: Progress = lambda done, of: None,  # noqa: ARG005
) -> list[Found]:
    """Run everything.

    Returns
    -------
    list of Found
        In the plan's order, whatever ended first.
    """
    groups = plan.groups
    found: dict[Group, Found] = {}
    for one in _alone(plan, groups) if executor is None else _beside(plan, groups, executor):
        found[one.group] = one
        progress(len(found), len(groups))
    return [found[group] for group in groups]


def _alone(plan: Plan, groups: Sequence[Group]) -> Iterator[Found]:
    for group in groups:
        yield run_group(plan, group)


def _beside(plan: Plan, groups: Sequence[Group], executor: Executor) -> Iterator[Found]:
    for future in as_completed([executor.submit(run_group, plan, group) for group in groups]):
        yield future.result()


def run_group(plan: Plan, group: Group) -> Found:
    """Run one group's cells."""
    size, todo = plan.size, plan.of(group)
    cells = [cell for cell, _ in todo]
    source = Synthetic(
        strengths(group.workload, plan.factors.get(group.geometry, 1.0)),
        GEOMETRIES[group.geometry],
        n_layers=group.layers or size.layers,
        calibration=size.calibration,
        requests=size.requests,
        sampled=any(cell.sampled for cell in cells),
    )
    named = {name for _, names in todo for name in names} - {CEILING}
    contenders = [parse_contender(name) for name in sorted(named)]
    engines = sorted({cell.engines for cell in cells})
    profiled = any(cell.spread for cell in cells)
    prepared = prepare(source, group.seed, engines, contenders, profiled=profiled)
    traffic = source.traffic(group.seed)
    runs: dict[tuple[Cell, str], Measures] = {}
    for cell, policies in todo:
        fitted = prepared
        if cell.form != FITTED:
            form = forms.make_form(cell.form, traffic.calibration)
            cosines = forms.cosines(form, traffic, cell.engines, size.pairs, group.seed)
            fitted = Prepared(group.seed, prepared.population, {(cell.engines, "balanced"): cosines})
        setting = setting_of(cell, size)
        load = meet(fitted, setting)
        whole = {
            name: run_whole(fitted, setting, parse_contender(name), load)
            for name in policies
            if name != CEILING
        }
        prove(cell, whole)
        runs |= {(cell, name): one.measures for name, one in whole.items()}
        if CEILING in policies:
            runs[cell, CEILING] = _ceiling(fitted, setting, load)
    known = group.seed in plan.seeds and any(cell.experiment == "main" for cell in cells)
    return Found(group, runs, forms.facts(traffic, size.pairs, group.seed) if known else {})


def prove(cell: Cell, runs: Mapping[str, Run]) -> None:
    """End the program if two policies that differ in what they know placed every request alike.

    That each did what its name says is proven where it ran, see :mod:`eldr_lab.pool.witness`.
    """
    for name, other in UNLIKE:
        if cell.law == "flat" or not {name, other} <= runs.keys():
            continue
        require((runs[name].worker != runs[other].worker).any(), f"{name} placed every request as {other} did in {cell}")  # fmt: skip


def _ceiling(prepared: Prepared, setting: Setting, load: Load) -> Measures:
    start = run_whole(prepared, setting, parse_contender(PRIOR), load)
    pool = Pool(setting.step_times, setting.limits, setting.sampled)
    return best_schedule(pool, prepared.population, load, start, seed=prepared.seed)


def setting_of(cell: Cell, size: Size) -> Setting:
    """Return a cell's pool and load for the simulator."""
    law = law_of(cell)
    return Setting(
        engines=cell.engines,
        rate=cell.rate,
        batch=None,
        step_time=law,
        speeds=cell.speeds,
        limits=Limits(max_num_seqs=MOST),
        seconds=size.seconds,
        output_tokens=size.output_tokens,
        sampled=cell.sampled,
        drift=Drift(cell.drift_at, LATER[cell.workload]) if cell.drift_at < math.inf else None,
        prefill=prefill(cell.geometry, law) if cell.prefilled else None,
        routers=cell.routers,
        lag=cell.lag,
        cache=PrefixCache(cell.cached, cell.counted) if cell.cached else None,
        ranks=GEOMETRIES[cell.geometry].ranks,
        spread=cell.spread,
    )


def law_of(cell: Cell) -> StepTime:
    """Return the step-time model of a cell's engines."""
    if cell.law == "fitted":
        return step_laws.fit(cell.geometry).law
    law = LAWS[f"{cell.geometry}-mi300x"]
    if cell.law == "flat":
        return replace(law, fixed=law.seconds(0, _TYPICAL_ACTIVE), per_expert=0.0)
    return law

"""What all runs found, asked by experiment, policy and measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from eldr_lab.evidence.cells import BALANCERS, JSQ, TUNED, Cell
from eldr_lab.evidence.intervals import Interval, changes, interval
from eldr_lab.evidence.running import Found, Plan
from eldr_lab.synthetic.measures import Measures

P50, P99, MEAN = "tpot_p50", "tpot_p99", "tpot_mean"
FIRST_P50, FIRST_P99 = "ttft_p50", "ttft_p99"
EXPERTS, STEP_EXPERTS, FULLEST = "active_per_token", "active_per_step", "fullest_per_token"
BEST = None
"""In place of a baseline: the best balancer of each cell."""


@dataclass(frozen=True)
class Results:
    """Runs by cell, policy and seed, and the code that ran."""

    plan: Plan
    found: Sequence[Found]
    revision: str = ""

    @cached_property
    def _runs(self) -> dict[tuple[Cell, str], dict[int, Measures]]:
        runs: dict[tuple[Cell, str], dict[int, Measures]] = {}
        for one in self.found:
            for key, measures in one.runs.items():
                runs.setdefault(key, {})[one.group.seed] = measures
        return runs

    def cells(self, experiment: str, workload: str | None = None, geometry: str | None = None) -> list[Cell]:
        """Return the cells of an experiment."""
        return [
            cell
            for cell in self.plan.cells
            if cell.experiment == experiment
            and workload in (None, cell.workload)
            and geometry in (None, cell.geometry)
        ]

    def kinds(self, experiment: str) -> list[tuple[str, str]]:
        """Return geometry and workload of an experiment's cells, each once."""
        return list(dict.fromkeys((cell.geometry, cell.workload) for cell in self.cells(experiment)))

    def seeds(self, cells: Sequence[Cell], policies: Sequence[str]) -> list[int]:
        """Return the seeds under which all of these were run."""
        known = (*self.plan.seeds, *self.plan.more)
        runs = [self._runs[cell, policy] for cell in cells for policy in policies]
        return [seed for seed in known if all(seed in some for some in runs)]

    def values(
        self, cell: Cell, policy: str, measure: str, seeds: Sequence[int] | None = None
    ) -> list[float]:
        """Return one value per seed; without ``seeds``, those of every cell and policy."""
        runs = self._runs[cell, policy]
        return [float(getattr(runs[seed], measure)) for seed in (self.plan.seeds if seeds is None else seeds)]

    def mean(self, cell: Cell, policy: str, measure: str) -> float:
        """Return the mean over the seeds."""
        values = self.values(cell, policy, measure)
        return sum(values) / len(values)

    def level(self, cell: Cell, policy: str, measure: str, unit: float = 1.0) -> Interval:
        """Return a value itself, so many times as large."""
        return interval([unit * value for value in self.values(cell, policy, measure)])

    def best(self, cell: Cell, measure: str) -> str:
        """Return the balancer with the least mean."""
        known = [name for name in BALANCERS if name in cell.policies]
        return min(known, key=lambda name: self.mean(cell, name, measure))

    def change(self, cells: Sequence[Cell], policy: str, baseline: str | None, measure: str) -> Interval:
        """Return the relative difference, percent: of each seed that all of them had the mean over the cells, paired request by request.

        A policy of :data:`eldr_lab.evidence.cells.TUNED` is judged under the plan's further seeds alone, where it has some.

        Parameters
        ----------
        cells : sequence of Cell
        policy : str
        baseline : str or None
            ``BEST``: the best balancer of each cell, by its mean over the seeds.
        measure : str
        """
        others = [baseline or self.best(cell, measure) for cell in cells]
        common = [set(self.seeds([cell], (policy, other))) for cell, other in zip(cells, others, strict=True)]
        seeds = self._judging(sorted(set.intersection(*common)), {policy, *others})
        rows = []
        for cell, other in zip(cells, others, strict=True):
            ours, theirs = (self.values(cell, name, measure, seeds) for name in (policy, other))
            rows.append([100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)])
        return interval([sum(column) / len(column) for column in zip(*rows, strict=True)])

    def share(self, cells: Sequence[Cell], policy: str, ceiling: str, measure: str) -> Interval:
        """Return a policy's part of what a ceiling gains against JSQ, mean over the cells, percent.

        The interval is over the seeds that both were run under.
        """
        shares = []
        for seed in self.seeds(cells, (policy, ceiling, JSQ)):
            gains = [
                sum(
                    self.values(cell, name, measure, [seed])[0] / self.values(cell, JSQ, measure, [seed])[0]
                    - 1
                    for cell in cells
                )
                for name in (policy, ceiling)
            ]
            shares.append(100 * gains[0] / gains[1])
        return interval(shares)

    def _judging(self, seeds: list[int], policies: set[str]) -> list[int]:
        """Leave out the seeds that a policy's constants were chosen under, where there are others."""
        fresh = [seed for seed in seeds if seed in self.plan.more]
        return fresh if fresh and policies & set(TUNED) else seeds

    def change_between(
        self, cell: Cell, other: Cell, policy: str, measure: str, baseline: str | None = None
    ) -> Interval:
        """Return a policy's relative difference between two cells of the same arrivals, percent; ``baseline``: the other cell's policy."""
        ours, theirs = self.values(cell, policy, measure), self.values(other, baseline or policy, measure)
        return changes(ours, theirs)

    def mean_fact(
        self, kinds: Sequence[tuple[str, str]], value: Callable[[dict[str, float]], float]
    ) -> Interval:
        """Return what several workloads say, by geometry and workload: of each seed the mean over them."""
        return interval(
            [
                sum(value(one.facts) for one in some) / len(some)
                for seed in self.plan.seeds
                for some in [
                    [
                        one
                        for one in self.found
                        if one.facts
                        and one.group.seed == seed
                        and (one.group.geometry, one.group.workload) in kinds
                    ]
                ]
            ]
        )

    def fact(self, geometry: str, workload: str, name: str) -> Interval:
        """Return what the workload itself says."""
        return interval(
            [
                one.facts[name]
                for one in self.found
                if one.facts and (one.group.geometry, one.group.workload) == (geometry, workload)
            ]
        )

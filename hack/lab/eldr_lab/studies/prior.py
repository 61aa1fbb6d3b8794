"""What a prior that routers learn themselves is worth, beside a fitted one and none: docs/benchmarks/prior.md.

All policies of a seed meet the same requests. A call goes on where one ended.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np

from eldr_bench.machine import ROOT
from eldr_lab.evidence.cells import (
    DRIFT_AT,
    FULL,
    GEOMETRIES,
    JSQ,
    LATER,
    LOWS,
    MARGINAL,
    PRIOR,
    RATES,
    SLOWER,
    STRENGTHS,
    WORKLOADS,
    Cell,
    Size,
    place,
    strengths,
)
from eldr_lab.evidence.running import setting_of
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import run_whole
from eldr_lab.report import Interval, filled, interval, table
from eldr_lab.synthetic.activations import Synthetic
from eldr_lab.synthetic.contenders import LEARNED
from eldr_lab.synthetic.run import Run
from eldr_lab.synthetic.study import Load, Prepared, meet, prepare

PAGE = ROOT / "docs" / "benchmarks" / "prior.md"
FIGURES = PAGE.with_suffix(".json")
FIRST_SEED = 300
"""No constant was chosen under this seed, or a later one."""
AT_REST, AFTER_DRIFT = 0.6, 0.3
"""Points by which the mean may at most be above that of the fitted prior, by the upper end of the interval."""
HOLDS, UNDECIDED, MISSED = "holds", "undecided", "**no**"
WELL = 0.25
"""Seconds between exchanges of routers that hear each other well."""
TITLES = {
    "rest": "At rest", "drift": "After a drift", "popular": "A popular kind", "uneven": "Slow and fast engines", "size": "Size of the pool",
    "routers": "Several routers", "apart": "Routers that hear little of each other", "joins": "A new engine", "restart": "A restart",
}  # fmt: skip
POLICIES = {"none": MARGINAL, "fitted": PRIOR, "learned": LEARNED}
SIZES = (2, 4, 8, 24, 64)
PER_ENGINE = 3.75
"""Requests per second where pools of several sizes are compared."""
SOON = 30.0
"""Seconds in which a new engine should have found its share."""
NEW = 5
"""The engine that comes later."""
Figures = dict[str, dict[str, dict[str, float]]]
"""By seed, policy and quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the study: a pool under a load.

    Attributes
    ----------
    group : str
        ``rest``, ``drift``, ``popular`` (one kind is most of the traffic, and was when centroids were fitted), ``uneven``, ``size``,
        ``routers``, ``joins`` (an engine is new when measuring begins), or ``restart`` (routers lose what they learned then).
    """

    group: str
    geometry: str
    workload: str
    rate: float
    engines: int = 16
    routers: int = 1
    lag: float = 0.25

    @property
    def key(self) -> str:
        """What figures of it are found by."""
        return ",".join(map(str, asdict(self).values()))

    @property
    def source(self) -> tuple[str, str, bool]:
        """What requests it shares with others: model, workload, and whether one kind is popular."""
        return self.geometry, self.workload, self.group == "popular"

    def setting(self, size: Size) -> Setting:
        """Return its pool and load."""
        cell = Cell(
            experiment=self.group, workload=self.workload, geometry=self.geometry, rate=self.rate, engines=self.engines,
            prefilled=self.group == "rest", routers=self.routers, lag=self.lag,
            speeds=(1.0, SLOWER) if self.group == "uneven" else (1.0,),
            drift_at=DRIFT_AT if self.group == "drift" else math.inf,
        )  # fmt: skip
        return setting_of(cell, size)

    def disturbed(self, setting: Setting, load: Load) -> Setting:
        """Return the setting with what happens when measuring begins."""
        at = load.window.warmup
        if self.group == "joins":
            return replace(setting, joins=((NEW, at),))
        return replace(setting, restarts=at) if self.group == "restart" else setting


def cases() -> list[Case]:
    """Return all of them."""
    first = next(iter(GEOMETRIES))
    both = list(itertools.product(GEOMETRIES, WORKLOADS))
    found = [Case(group="rest", geometry=g, workload=w, rate=rate) for g, w in both for rate in RATES]
    for group in ("drift", "popular"):
        found += [Case(group=group, geometry=g, workload=w, rate=rate) for g, w in both for rate in LOWS]
    for workload in WORKLOADS:
        found += [
            Case(group=group, geometry=first, workload=workload, rate=rate)
            for group in ("uneven", "joins", "restart")
            for rate in LOWS
        ]
        found += [
            Case(group="size", geometry=first, workload=workload, rate=PER_ENGINE * n, engines=n)
            for n in SIZES
        ]
        found += [
            Case(group="routers", geometry=first, workload=workload, rate=60.0, routers=n, lag=lag)
            for n, lag in ((2, 0.25), (4, 0.25), (4, 2.0), (4, math.inf))
        ]
    return found


def measure(case: Case, prepared: Prepared, size: Size) -> dict[str, dict[str, float]]:
    """Run all policies in one case under one seed.

    Returns
    -------
    dict
        By policy: ``mean``, ``p50`` and ``p99``, percent against JSQ; ``most`` and ``least``, requests of the engine that got most and
        least, percent of the mean engine's; ``new``, the same of the new one in its first seconds, where there is one.
    """
    setting = case.setting(size)
    load = meet(prepared, setting)
    setting = case.disturbed(setting, load)
    base = run_whole(prepared, setting, parse_contender(JSQ), load).measures
    found = {}
    for name, policy in POLICIES.items():
        run = run_whole(prepared, setting, parse_contender(policy), load)
        changes = {
            short: round(100 * (getattr(run.measures, field) / getattr(base, field) - 1), 3)
            for short, field in (("mean", "tpot_mean"), ("p50", "tpot_p50"), ("p99", "tpot_p99"))
        }
        found[name] = changes | _shares(case, run, load)
    return found


def _shares(case: Case, run: Run, load: Load) -> dict[str, float]:
    ready, counted = load.workload.ready, load.workload.measured
    sent = np.bincount(run.engine[counted], minlength=case.engines) * 100 * case.engines / counted.sum()
    shares = {"most": round(float(sent.max()), 1), "least": round(float(sent.min()), 1)}
    if case.group == "joins":
        soon = counted & (ready < load.window.warmup + SOON)
        shares["new"] = round(float((run.engine[soon] == NEW).mean() * 100 * case.engines), 1)
    return shares


Found = tuple[Case, Figures]


def key(case: Case) -> str:
    """Return what figures of a case are found by: its own key, and how strong the preferences of its model are."""
    return f"{case.key},{STRENGTHS[case.geometry]:g}"


def run(
    todo: Sequence[Case], seeds: Sequence[int], size: Size, known: dict[str, Figures]
) -> Iterator[dict[str, Figures]]:
    """Yield the figures, by case and seed, as they grow."""
    # seed by seed, so that a call that is ended leaves whole ones
    for seed, shared in itertools.product(seeds, dict.fromkeys(case.source for case in todo)):
        own = [case for case in todo if case.source == shared and str(seed) not in known.get(key(case), {})]
        if not own:
            continue
        geometry, workload, popular = shared
        kinds = strengths(workload, geometry)
        source = Synthetic(
            replace(kinds, shares=LATER[workload]) if popular else kinds, GEOMETRIES[geometry],
            n_layers=size.layers, calibration=size.calibration, requests=size.requests,
        )  # fmt: skip
        contenders = [parse_contender(name) for name in POLICIES.values()]
        prepared = prepare(source, seed, [case.engines for case in own], contenders)
        for case in own:
            known.setdefault(key(case), {})[str(seed)] = measure(case, prepared, size)
            yield known


def page(found: Sequence[Found]) -> str:
    """Return the page."""
    seeds = sorted({int(seed) for _, figures in found for seed in figures})
    groups: dict[str, list[Found]] = {kind: [] for kind in TITLES}
    for one in found:
        groups[_kind(one[0])].append(one)
    named = [_named("The bound does not hold in", [one[0] for one in found if _verdict(one) == MISSED])]
    for what, name in (("mean", "mean"), ("p99", "P99")):
        changes = [(case, _less([(case, figures)], "none", what)) for case, figures in found]
        shorter = sum(change.high < 0 for _, change in changes)
        words = f"Against no prior, by the whole interval, the {name} is shorter in {shorter} of {len(changes)} cells. It is longer in"
        named.append(_named(words, [case for case, change in changes if change.low > 0]))
    return filled(
        Path(__file__).with_name("templates") / "prior.txt", cells=len(found), first=seeds[0], last=seeds[-1], at_rest=AT_REST,
        after_drift=AFTER_DRIFT, result=_result(groups), named="\n\n".join(named),
        tables={kind: _table(some) for kind, some in groups.items()}, loads=_loads(groups),
    )  # fmt: skip


def _result(groups: dict[str, list[Found]]) -> str:
    rows = []
    every = [one for some in groups.values() for one in some]
    for title, some in [*((TITLES[kind], some) for kind, some in groups.items()), ("All cells", every)]:
        less = [_less(some, other, what) for other in ("fitted", "none") for what in ("mean", "p99")]
        verdicts = [_verdict(one) for one in some]
        counts = " / ".join(str(verdicts.count(one)) for one in (HOLDS, UNDECIDED, MISSED))
        rows.append((title, *map(str, less), counts))
    return table(
        ("cells", "less fitted: mean", "P99", "less none: mean", "P99", "bound holds / undecided / does not"),
        rows,
    )


def _named(words: str, cases: Sequence[Case]) -> str:
    places = [f"- {_where(case)} ({TITLES[_kind(case)].lower()})" for case in cases]
    return "\n".join((f"{words} {len(cases)}:", "", *places)) if cases else f"{words} none."


def _table(found: Sequence[Found]) -> str:
    rows = []
    for one in found:
        case, figures = one
        changes = [interval([seed[name]["mean"] for seed in figures.values()]) for name in POLICIES]
        fitted = [_less([one], "fitted", what).text("+.2f", ".2f") for what in ("mean", "p50", "p99")]
        none = [_less([one], "none", what).text("+.2f", ".2f") for what in ("mean", "p99")]
        rows.append((_where(case), *map(str, changes), *fitted, _verdict(one), *none))
    less = ("learned less fitted: mean", "P50", "P99", "bound", "learned less none: mean", "P99")
    return table(("where", "mean, none", "fitted", "learned", *less), rows)


def _verdict(one: Found) -> str:
    bound, less = AFTER_DRIFT if one[0].group == "drift" else AT_REST, _less([one], "fitted", "mean")
    return HOLDS if less.high < bound else MISSED if less.low > bound else UNDECIDED


def _kind(case: Case) -> str:
    """Return the group of a cell; routers that hear little of each other are one of their own."""
    return "apart" if case.lag > WELL else case.group


def _less(found: Sequence[Found], other: str, what: str) -> Interval:
    """Return the mean over cells, with an interval over the seeds that all of them have."""
    common = set.intersection(*(set(figures) for _, figures in found))
    return interval(
        [
            sum(figures[seed]["learned"][what] - figures[seed][other][what] for _, figures in found)
            / len(found)
            for seed in sorted(common)
        ]
    )


def _loads(groups: dict[str, list[Found]]) -> str:
    def average(some: Sequence[Found], name: str, what: str) -> float:
        return float(np.mean([seed[name][what] for _, figures in some for seed in figures.values()]))

    rows = []
    for group, some in groups.items():
        shares = [
            f"{average(some, name, 'most'):.0f} / {average(some, name, 'least'):.0f}" for name in POLICIES
        ]
        new = (
            " / ".join(f"{average(some, name, 'new'):.0f}" for name in POLICIES) if group == "joins" else "-"
        )
        rows.append((TITLES[group], *shares, new))
    head = (
        "cells",
        "none: most / least",
        "fitted",
        "learned",
        f"new engine, first {SOON:g} s: none / fitted / learned",
    )
    return table(head, rows)


def _where(case: Case) -> str:
    parts = [place(case.geometry, case.workload), f"{case.rate:g}/s"]
    if case.engines != 16:
        parts.append(f"{case.engines} engines")
    if case.routers > 1:
        lag = "never" if math.isinf(case.lag) else f"every {case.lag:g} s"
        parts += [f"{case.routers} routers", lag]
    return ", ".join(parts)


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(2), default=10, help="How many.")
@click.option("--again", is_flag=True, help="Write the page from the last figures.")
def main(seeds: int, *, again: bool) -> None:
    """Simulate, and write the page."""
    wanted = {key(case): case for case in cases()}
    stored = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known = {name: found for name, found in stored.items() if name in wanted}
    for found in () if again else run(cases(), range(FIRST_SEED, FIRST_SEED + seeds), FULL, known):
        FIGURES.write_text(json.dumps(found, indent=None, separators=(",", ":"), sort_keys=True) + "\n")
        click.echo(f"{len(found)} cells", err=True)
    PAGE.write_text(page([(case, known[name]) for name, case in wanted.items() if name in known]))


if __name__ == "__main__":
    main()

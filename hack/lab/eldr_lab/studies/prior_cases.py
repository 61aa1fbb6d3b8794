"""The cells in which a learned prior is compared with a fitted one and none, and what is measured in each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from eldr_lab.evidence.cells import (
    DRIFT_AT,
    GEOMETRIES,
    JSQ,
    MARGINAL,
    PRIOR,
    RATES,
    SLOWER,
    WORKLOADS,
    Cell,
    Size,
)
from eldr_lab.evidence.running import setting_of
from eldr_lab.pool.contenders import parse_contender
from eldr_lab.pool.setting import Setting
from eldr_lab.pool.study import Load, Prepared, meet, run_whole
from eldr_lab.synthetic.contenders import LEARNED
from eldr_lab.synthetic.run import Run

POLICIES = {"none": MARGINAL, "fitted": PRIOR, "learned": LEARNED}
LOWS = (20.0, 60.0)
SIZES = (2, 4, 8, 24, 64)
PER_ENGINE = 3.75
"""Requests per second where pools of several sizes are compared."""
SOON = 30.0
"""Seconds in which a new engine should have found its share."""
NEW = 5
"""The engine that comes later."""
Figures = Mapping[str, Mapping[str, Mapping[str, float]]]
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
            experiment=self.group, workload=self.workload, geometry=self.geometry, rate=self.rate, policies=(), engines=self.engines,
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
    first = GEOMETRIES[0]
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


def measure(
    case: Case, prepared: Prepared, size: Size, policies: Collection[str] = tuple(POLICIES)
) -> dict[str, dict[str, float]]:
    """Run policies in one case under one seed.

    Parameters
    ----------
    policies : collection of str
        Of :data:`POLICIES`.

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
    for name in policies:
        policy = POLICIES[name]
        run = run_whole(prepared, setting, parse_contender(policy), load)
        changes = {
            short: round(100 * (getattr(run.measures, field) / getattr(base, field) - 1), 3)
            for short, field in (("mean", "tpot_mean"), ("p50", "tpot_p50"), ("p99", "tpot_p99"))
        }
        found[name] = changes | _shares(case, run, load)
    return found


def _shares(case: Case, run: Run, load: Load) -> dict[str, float]:
    ready, counted = load.workload.ready, load.workload.measured
    sent = np.bincount(run.worker[counted], minlength=case.engines) * 100 * case.engines / counted.sum()
    shares = {"most": round(float(sent.max()), 1), "least": round(float(sent.min()), 1)}
    if case.group == "joins":
        soon = counted & (ready < load.window.warmup + SOON)
        shares["new"] = round(float((run.worker[soon] == NEW).mean() * 100 * case.engines), 1)
    return shares

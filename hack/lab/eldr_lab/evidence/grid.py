"""The experiments: which pools, loads and policies are simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from eldr_lab.evidence.cells import (
    BAND,
    BLIND,
    DRIFT_AT,
    FORMS,
    GEOMETRIES,
    JSQ,
    LOCALITY,
    MAIN,
    MARGINAL,
    PRIOR,
    RATES,
    ROLLING,
    ROLLING_PRIOR,
    ROLLING_VANILLA,
    SLOWER,
    SMOKE_DRIFT_AT,
    SWEPT,
    SWEPT_ROLLING,
    VANILLA,
    WORKLOADS,
    Cell,
)

_BRIEF = (JSQ, BAND, MARGINAL, PRIOR)
_GUARDED = (JSQ, *LOCALITY)
_POOLED = "language"
"""The workload of the paper's pools of several sizes (Table 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How far the experiments go.

    Attributes
    ----------
    geometries : tuple of str
        The first one has the experiments beside the main one.
    rates : tuple of float
        Published ones, requests per second.
    beyond : tuple of float
        Higher ones, so that throughput within an objective has an end.
    pools : tuple of int
        Pool sizes beside 16, which the main cells have.
    lows : tuple of float
        Rates of the pools that drift or are uneven, and of those with all layers.
    deep : int
        All layers of the first model; elsewhere a few stand for them.
    drift_at : float
        Seconds.
    """

    geometries: tuple[str, ...]
    rates: tuple[float, ...]
    beyond: tuple[float, ...]
    pools: tuple[int, ...]
    lows: tuple[float, ...]
    deep: int
    drift_at: float


def full() -> tuple[Cell, ...]:
    """Return every experiment."""
    return make(
        Grid(geometries=GEOMETRIES, rates=RATES, beyond=(120.0,), pools=(8, 24), lows=(20.0, 60.0), deep=48,
             drift_at=DRIFT_AT)
    )  # fmt: skip


def smoke() -> tuple[Cell, ...]:
    """Return a few small ones that touch every part."""
    return make(
        Grid(geometries=GEOMETRIES[:1], rates=RATES[2:3], beyond=(), pools=(4, 6), lows=(60.0,), deep=3, drift_at=SMOKE_DRIFT_AT)
    )  # fmt: skip


def make(grid: Grid) -> tuple[Cell, ...]:
    """Return the experiments."""
    first = grid.geometries[0]
    kinds = list(itertools.product(grid.geometries, WORKLOADS))
    cells = [cell for geometry, workload in kinds for cell in _of_all(geometry, workload, grid)]
    for workload in WORKLOADS:
        cells += _of_first(first, workload, grid)
    return tuple(sorted(cells, key=lambda cell: cell.experiment != "main"))


def _of_all(geometry: str, workload: str, grid: Grid) -> Iterator[Cell]:
    """Yield what every model has."""
    for rate in grid.rates:
        yield Cell(
            experiment="main", workload=workload, geometry=geometry, rate=rate, policies=MAIN, prefilled=True
        )
    for rate in grid.beyond:
        yield Cell(
            experiment="beyond",
            workload=workload,
            geometry=geometry,
            rate=rate,
            policies=_GUARDED,
            prefilled=True,
        )
    yield Cell(
        experiment="tau",
        workload=workload,
        geometry=geometry,
        rate=60.0,
        policies=(JSQ, *SWEPT, *SWEPT_ROLLING),
    )
    yield Cell(
        experiment="clusters", workload=workload, geometry=geometry, rate=60.0,
        policies=("RoundRobin", BAND, VANILLA, ROLLING, ROLLING_VANILLA),
    )  # fmt: skip


def _of_first(geometry: str, workload: str, grid: Grid) -> Iterator[Cell]:
    """Yield what one model has."""
    if workload == _POOLED:
        for n, rate in itertools.product(grid.pools, grid.rates):
            yield Cell(
                experiment="pool", workload=workload, geometry=geometry, rate=rate, engines=n, prefilled=True,
                policies=("RoundRobin", *_BRIEF),
            )  # fmt: skip
    for rate in grid.lows:
        yield Cell(
            experiment="deep",
            workload=workload,
            geometry=geometry,
            rate=rate,
            layers=grid.deep,
            policies=_BRIEF,
        )
        yield Cell(
            experiment="drift", workload=workload, geometry=geometry, rate=rate, drift_at=grid.drift_at,
            policies=(*_GUARDED, ROLLING, ROLLING_PRIOR),
        )  # fmt: skip
        yield Cell(
            experiment="uneven",
            workload=workload,
            geometry=geometry,
            rate=rate,
            speeds=(1.0, SLOWER),
            policies=(*_GUARDED, BLIND),
        )
    for form in FORMS:
        yield Cell(
            experiment="signature",
            workload=workload,
            geometry=geometry,
            rate=60.0,
            form=form,
            policies=(JSQ, BAND),
        )
    for law in ("flat", "fitted"):
        yield Cell(
            experiment="flat" if law == "flat" else "law", workload=workload, geometry=geometry, rate=60.0, law=law,
            policies=_BRIEF,
        )  # fmt: skip
    for sampled in (False, True):
        yield Cell(
            experiment="steps",
            workload=workload,
            geometry=geometry,
            rate=60.0,
            sampled=sampled,
            policies=_BRIEF,
        )
    for routers, lag in ((2, 0.25), (4, 0.25), (4, 2.0), (4, math.inf)):
        yield Cell(
            experiment="routers", workload=workload, geometry=geometry, rate=60.0, routers=routers, lag=lag, policies=_BRIEF,
        )  # fmt: skip
    for cached, counted in ((0.0, True), (0.5, True), (0.5, False), (1.0, False)):
        yield Cell(
            experiment="prefix", workload=workload, geometry=geometry, rate=60.0, prefilled=True, cached=cached,
            counted=counted, policies=_BRIEF,
        )  # fmt: skip

"""The experiments as data: which pools, loads and policies are simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

GEOMETRIES = ("qwen3-30b", "gpt-oss-120b", "gemma-4-26b")
WORKLOADS = ("task", "language")
RATES = (20.0, 40.0, 60.0, 80.0, 100.0)
JSQ, BAND, MARGINAL, PRIOR = "JSQ", "ELDR", "MarginalUnion", "MarginalUnion:prior=0.23"
MIN2, BOUNDED, TOP1, VANILLA = "ELDR:min_candidates=2", "ELDR:max_load=1.25", "ELDR:tau=0", "ELDR-vanilla"
BALANCERS = ("RoundRobin", JSQ, "PowerOfTwo", "Random")
EVEN = ("RoundRobin", JSQ, "PowerOfTwo")
"""Balancers that keep batches alike: what the paper calls level."""
LOCALITY = (BAND, MIN2, BOUNDED, MARGINAL, PRIOR)
MAIN = (*BALANCERS, "Domain", BAND, MIN2, BOUNDED, TOP1, VANILLA, MARGINAL, PRIOR)
TAUS = ("0", "0.05", "0.1", "0.2", "0.3", "1")
SWEPT = tuple(f"ELDR:tau={tau}" for tau in TAUS)
FORMS = ("counts_idf", "counts", "sqrt", "binary")
FITTED = "fitted"
"""Signatures as the fit itself chooses them."""
SLOWER = 1.58
"""How much slower the second half of a heterogeneous pool is."""
DRIFT_AT = 45.0
SMOKE_DRIFT_AT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One pool under one load, and the policies that meet the same requests there.

    Attributes
    ----------
    experiment : str
    workload, geometry : str
    rate : float
        Requests per second.
    policies : tuple of str
    engines : int
    speeds : tuple of float
        Times as long as the law, engine after engine, repeated.
    drift_at : float
        When the mix of kinds changes, seconds.
    law : str
        ``shipped``, ``fitted`` anew to the published times, or ``flat``: experts cost nothing.
    form : str
        How signatures are made.
    """

    experiment: str
    workload: str
    geometry: str
    rate: float
    policies: tuple[str, ...]
    engines: int = 16
    speeds: tuple[float, ...] = (1.0,)
    drift_at: float = math.inf
    law: str = "shipped"
    form: str = FITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large every run is.

    Attributes
    ----------
    seconds : float
        Measured, simulated.
    output_tokens : int
    layers : int
        Simulated ones; they stand for all of a model.
    calibration, requests : int
        Requests for centroids, and of each workload.
    pairs : int
        Pairs of requests that rho is taken over.
    """

    seconds: float
    output_tokens: int
    layers: int
    calibration: int
    requests: int
    pairs: int


FULL = Size(seconds=60.0, output_tokens=512, layers=8, calibration=1000, requests=4000, pairs=30_000)
SMOKE = Size(seconds=2.0, output_tokens=16, layers=2, calibration=64, requests=120, pairs=500)


def full() -> tuple[Cell, ...]:
    """Return every experiment."""
    return make(GEOMETRIES, RATES, pools=(8, 16, 24), lows=(20.0, 60.0), drift_at=DRIFT_AT)


def smoke() -> tuple[Cell, ...]:
    """Return a few small ones that touch every part."""
    return make(GEOMETRIES[:1], RATES[2:3], pools=(4, 16), lows=(60.0,), drift_at=SMOKE_DRIFT_AT)


def make(
    geometries: Sequence[str],
    rates: Sequence[float],
    *,
    pools: Sequence[int],
    lows: Sequence[float],
    drift_at: float,
) -> tuple[Cell, ...]:
    """Return the experiments.

    Parameters
    ----------
    geometries : sequence of str
        The first one has the experiments beside the main one.
    rates : sequence of float
    pools : sequence of int
        Pool sizes; the load of each engine stays the same.
    lows : sequence of float
        Rates of the pools that drift or are uneven.
    drift_at : float
        Seconds.
    """
    first = geometries[0]
    cells = [
        Cell(experiment="main", workload=workload, geometry=geometry, rate=rate, policies=MAIN)
        for geometry, workload, rate in itertools.product(geometries, WORKLOADS, rates)
    ]
    cells += [
        Cell(experiment="tau", workload=workload, geometry=geometry, rate=60.0, policies=(JSQ, *SWEPT))
        for geometry, workload in itertools.product(geometries, WORKLOADS)
    ]
    brief = (JSQ, BAND, MARGINAL, PRIOR)
    guarded = (JSQ, *LOCALITY)
    for workload in WORKLOADS:
        cells += [
            Cell(
                experiment="pool",
                workload=workload,
                geometry=first,
                rate=60.0 * n / 16,
                engines=n,
                policies=brief,
            )
            for n in pools
        ]
        cells += [
            Cell(
                experiment="drift",
                workload=workload,
                geometry=first,
                rate=rate,
                drift_at=drift_at,
                policies=guarded,
            )
            for rate in lows
        ]
        cells += [
            Cell(
                experiment="uneven",
                workload=workload,
                geometry=first,
                rate=rate,
                speeds=(1.0, SLOWER),
                policies=guarded,
            )
            for rate in lows
        ]
        cells += [
            Cell(
                experiment="signature",
                workload=workload,
                geometry=first,
                rate=60.0,
                form=form,
                policies=(JSQ, BAND),
            )
            for form in FORMS
        ]
        cells.append(
            Cell(experiment="flat", workload=workload, geometry=first, rate=60.0, law="flat", policies=brief)
        )
        cells.append(
            Cell(experiment="law", workload=workload, geometry=first, rate=60.0, law="fitted", policies=brief)
        )
    return tuple(cells)


BEST_RANGES = {"task": (-17.0, -8.0), "language": (-12.0, -5.0)}
"""Where the band's P50 against the best balancer should lie, percent, mean over the rates."""

"""What is simulated, as data: one cell is a pool under a load with its policies."""

from __future__ import annotations

import math
from dataclasses import dataclass

GEOMETRIES = ("qwen3-30b", "gpt-oss-120b", "gemma-4-26b")
WORKLOADS = ("task", "language")
RATES = (20.0, 40.0, 60.0, 80.0, 100.0)
JSQ, BAND, MARGINAL, PRIOR = "JSQ", "ELDR", "MarginalUnion", "MarginalUnion:prior=0.23"
BLIND = "MarginalUnion:blind"
"""It knows how fast each engine is, and nothing of experts."""
CEILING = "Clairvoyant"
"""No policy: the best schedule that a search found which knows everything in advance, see :mod:`eldr_lab.evidence.ceiling`."""
MIN2, BOUNDED, TOP1, VANILLA = "ELDR:min_candidates=2", "ELDR:max_load=1.25", "ELDR:tau=0", "ELDR-vanilla"
ROLLING, ROLLING_VANILLA = "ELDR:min_candidates=2:refit=2.5", "ELDR-vanilla:min_candidates=2:refit=2.5"
"""The artifact's band: two candidates, and centroids re-fitted every 2.5 s on the last 5 s; with both kinds of clusters."""
ROLLING_PRIOR = "MarginalUnion:prior=0.23:refit=2.5"
BALANCERS = ("RoundRobin", JSQ, "PowerOfTwo", "Random")
EVEN = ("RoundRobin", JSQ, "PowerOfTwo")
"""Balancers that keep batches alike: what the paper calls level."""
LOCALITY = (BAND, MIN2, BOUNDED, MARGINAL, PRIOR)
UNLIKE = ((PRIOR, MARGINAL), (BLIND, MARGINAL), (VANILLA, BAND))
"""Policies that must place some request of every cell differently: the first knows something else than the second."""
DUELLISTS = (*BALANCERS, BAND, BOUNDED, MARGINAL, PRIOR, BLIND)
"""Compared cell by cell, with more seeds than the others."""
DUELS = ("main", "drift", "uneven")
"""Where that is done: what the default policy is chosen by."""
TUNED = (MARGINAL, PRIOR)
"""Policies with constants that were chosen in some of these cells, under the seeds up to 5 (``docs/development/marginal-union.md``)."""
MAIN = (*BALANCERS, "Domain", BAND, MIN2, ROLLING, BOUNDED, TOP1, VANILLA, MARGINAL, PRIOR)
TAUS = ("0", "0.05", "0.1", "0.2", "0.3", "1")
SWEPT = tuple(f"ELDR:tau={tau}" for tau in TAUS)
ROLLING_TAUS = ("0", "0.1", "0.2", "0.3")
SWEPT_ROLLING = tuple(f"ELDR:tau={tau}:min_candidates=2:refit=2.5" for tau in ROLLING_TAUS)
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
    sampled : bool
        Whether active experts are those of single steps.
    prefilled : bool
        Whether prompts pass prefill engines.
    cached : float
        Share of every prompt that is found in their prefix caches.
    counted : bool
        Whether routers learn the experts of what was found.
    routers : int
        That take requests in turn.
    lag : float
        Between their exchanges, seconds; infinity: they have lost each other.
    layers : int or None
        Simulated ones; None: as many as the plan's size says.
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
    sampled: bool = False
    prefilled: bool = False
    cached: float = 0.0
    counted: bool = True
    routers: int = 1
    lag: float = 0.25
    layers: int | None = None


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

BEST_RANGES = {"task": (-17.0, -8.0), "language": (-12.0, -5.0)}
"""Where the band's P50 against the best balancer should lie, percent, mean over the rates."""

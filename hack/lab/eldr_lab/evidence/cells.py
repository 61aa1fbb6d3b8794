"""What is simulated, as data: one cell is a pool under a load with its policies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eldr_lab.synthetic.activations import WORKLOADS as PREFERENCES
from eldr_lab.synthetic.activations import Geometry, Strengths, normalised

GEOMETRIES = {
    "qwen3-30b": Geometry(128, 8),
    "gpt-oss-120b": Geometry(128, 4),
    "gemma-4-26b": Geometry(128, 8),
}
MODELS = {"qwen3-30b": "Qwen3-30B", "gpt-oss-120b": "GPT-OSS-120B", "gemma-4-26b": "Gemma-4-26B"}
STRENGTHS = {"qwen3-30b": 0.88, "gpt-oss-120b": 0.73, "gemma-4-26b": 0.53}
"""How strongly kinds of requests prefer experts, relative to the product's workloads.

Tuned to published P50 of *Domain* on the task workload, and to nothing else: docs/benchmarks/studies.md, Calibration.
"""
WORKLOADS = ("task", "language")
LATER = {
    "task": normalised((10, 10, 10, 70)),
    "language": normalised((15, 15, 40, 20, 10)),
}
"""Shares of the kinds of requests after a drift."""
RATES = (20.0, 40.0, 60.0, 80.0, 100.0)
LOWS = (20.0, 60.0)
"""Rates of pools that drift or are uneven."""
JSQ, BAND, MARGINAL, PRIOR = "JSQ", "ELDR", "MarginalUnion", "MarginalUnion:prior=0.23"
MIN2, BOUNDED = "ELDR:min_candidates=2", "ELDR:max_load=1.25"
BLIND = "MarginalUnion:blind"
"""It knows how fast each engine is, and nothing of experts."""
ROLLING = "ELDR:min_candidates=2:refit=2.5"
"""The artifact's band: two candidates, and centroids fitted every 2.5 s on the last 5 s."""
BALANCERS = ("RoundRobin", JSQ, "PowerOfTwo", "Random")
LOCALITY = (BAND, MIN2, BOUNDED, MARGINAL, PRIOR)
UNLIKE = ((PRIOR, MARGINAL), (BLIND, MARGINAL))
"""Policies that must place some request of every cell differently."""
DUELLISTS = (*BALANCERS, BAND, BOUNDED, MARGINAL, PRIOR, BLIND)
"""Compared cell by cell, with more seeds than the others."""
TUNED = (MARGINAL, PRIOR)
"""Policies whose constants were chosen in some of these cells.

That was under the seeds up to 5 (``docs/development/marginal-union.md``).
"""
POLICIES = {
    JSQ: "JSQ", BAND: "band", MIN2: "band, min-2", BOUNDED: "band, bounded 1.25", MARGINAL: "MarginalUnion",
    PRIOR: "MarginalUnion + prior", ROLLING: "band, min-2, refit", BLIND: "MarginalUnion, blind",
}  # fmt: skip
"""What policies are called on pages."""
SLOWER = 1.58
"""How much slower every second engine of an uneven pool is."""
DRIFT_AT = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One pool under one load, and the policies that meet the same requests there.

    Attributes
    ----------
    experiment : str
        ``main``, ``drift`` or ``uneven``; another study has names of its own.
    workload, geometry : str
    rate : float
        Requests per second.
    policies : tuple of str
    engines : int
    speeds : tuple of float
        Times as long as the step-time model, engine after engine, repeated.
    drift_at : float
        When the mix of kinds changes, seconds.
    prefilled : bool
        Whether prompts pass prefill engines.
    routers : int
        That take requests in turn.
    lag : float
        Between their exchanges, seconds; infinity: they have lost each other.
    """

    experiment: str
    workload: str
    geometry: str
    rate: float
    policies: tuple[str, ...] = ()
    engines: int = 16
    speeds: tuple[float, ...] = (1.0,)
    drift_at: float = math.inf
    prefilled: bool = False
    routers: int = 1
    lag: float = 0.25

    def __str__(self) -> str:
        kinds = {"drift": ", after a drift", "uneven": ", slow and fast engines"}
        return f"{place(self.geometry, self.workload)}, {self.rate:.0f} requests/s{kinds.get(self.experiment, '')}"


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
    """

    seconds: float
    output_tokens: int
    layers: int
    calibration: int
    requests: int


FULL = Size(seconds=60.0, output_tokens=512, layers=8, calibration=1000, requests=4000)
SMOKE = Size(seconds=2.0, output_tokens=16, layers=2, calibration=64, requests=120)


def full() -> tuple[Cell, ...]:
    """Return every experiment."""
    cells = [
        Cell(
            experiment="main", workload=workload, geometry=geometry, rate=rate, prefilled=True,
            policies=(*BALANCERS, "Domain", *LOCALITY, ROLLING),
        )
        for geometry, workload, rate in itertools.product(GEOMETRIES, WORKLOADS, RATES)
    ]  # fmt: skip
    return (*cells, *_disturbed(next(iter(GEOMETRIES)), DRIFT_AT))


def smoke() -> tuple[Cell, ...]:
    """Return a few small ones of each experiment."""
    kept = [cell for cell in full() if cell.rate == RATES[2] and cell.geometry == "qwen3-30b"]
    return tuple(replace(cell, drift_at=4.0) if cell.experiment == "drift" else cell for cell in kept)


def _disturbed(geometry: str, drift_at: float) -> Iterator[Cell]:
    for workload, rate in itertools.product(WORKLOADS, LOWS):
        yield Cell(
            experiment="drift", workload=workload, geometry=geometry, rate=rate, drift_at=drift_at,
            policies=(JSQ, *LOCALITY, ROLLING),
        )  # fmt: skip
        yield Cell(
            experiment="uneven", workload=workload, geometry=geometry, rate=rate, speeds=(1.0, SLOWER),
            policies=(JSQ, *LOCALITY, BLIND),
        )  # fmt: skip


def strengths(workload: str, geometry: str) -> Strengths:
    """Return how strongly a workload's requests prefer experts of a model."""
    known, factor = PREFERENCES[workload], STRENGTHS.get(geometry, 1.0)
    return replace(known, domain=factor * known.domain, subdomain=factor * known.subdomain)


def policy(name: str) -> str:
    """Return a policy's name on pages."""
    return POLICIES.get(name, name)


def place(geometry: str, workload: str) -> str:
    """Return a model and its workload."""
    return f"{MODELS[geometry]}, {workload}"

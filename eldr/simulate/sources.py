"""The requests that a command line asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eldr.core.step_time import StepTime
from eldr.sim import traces
from eldr.simulate.captured import Captured
from eldr.simulate.laws import parse_law
from eldr.simulate.logged import read_logs
from eldr.simulate.population import Population, Source
from eldr.simulate.synthetic import GEOMETRIES, WORKLOADS, Synthetic

_BURSTY = 4.0
_BEFORE = ("fr", "ru", "manual", "legal")
_AFTER = ("en", "zh", "python", "changelog")


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Requests and what the command assumes of them unless told.

    Attributes
    ----------
    source : Source
    law : StepTime
    words : str
        What the requests are.
    output_tokens : int or None
        None: each request has its own length.
    sampled : bool
    distinct : int
        Requests that there are to draw from.
    notes : tuple of str
        What to know before believing the figures.
    """

    source: Source
    law: StepTime
    words: str
    output_tokens: int | None
    sampled: bool
    distinct: int
    notes: tuple[str, ...] = ()


def from_logs(
    paths: list[Path],
    *,
    model: str | None,
    limit: int,
    last: float,
    law: str | None,
    arrivals: Literal["poisson", "logged"],
    sampled: bool,
) -> Asked:
    """Return the requests of logs.

    Parameters
    ----------
    paths : list of Path
        Directories or segments.
    model : str, optional
    limit : int
        Records kept.
    last : float
        How far back from the newest record, seconds.
    law : str, optional
    arrivals : {"poisson", "logged"}
    sampled : bool
        Whether single steps are drawn.

    Raises
    ------
    eldr.fit.samples.FitError
        If the logs do not carry a simulation.
    ValueError
        If the law is none, or arrivals as logged are not known.
    """
    logged = read_logs(paths, model=model, limit=limit, seed=0, sampled=sampled, last=last)
    calibration, requests = logged.known.calibration, logged.known.requests
    notes = (*logged.damaged, *_on_arrivals(requests, arrivals))
    if law is None:
        notes = (*notes, "the step time is that of Qwen3-30B on MI300X; give your accelerator's with --law")
    skipped = "".join(f", {count} left out ({reason})" for reason, count in logged.skipped.items())
    return Asked(
        logged,
        parse_law(law or "qwen3-30b-mi300x", requests.n_experts),
        f"Requests of {logged.model!r} from the log: centroids from the older {len(calibration)}, simulated are the newer "
        f"{len(requests)}{skipped}.",
        None,
        sampled=sampled,
        distinct=len(requests),
        notes=notes,
    )


def _on_arrivals(requests: Population, arrivals: Literal["poisson", "logged"]) -> tuple[str, ...]:
    known = requests.arrivals
    if known is None:
        if arrivals == "logged":
            raise ValueError(
                "--arrivals: the times in this log tell no order of its requests; use --arrivals poisson"
            )
        return ()
    if arrivals == "poisson" and known.burstiness > _BURSTY:
        times = f"{known.burstiness:.0f} times the variance of random ones"
        return (
            f"the log's requests come in bursts ({times}); with --arrivals logged simulated ones do, too",
        )
    return ()


def from_captured(*, drifts: bool, law: str | None, sampled: bool) -> Asked:
    """Return the captured activations that come with the package."""
    loaded = traces.load()
    source = Captured(loaded, _BEFORE, _AFTER) if drifts else Captured(loaded, loaded.kinds)
    return Asked(
        source,
        parse_law(law or "qwen3-30b-mi300x", loaded.n_experts),
        f"Captured activations of a small trained model, kinds {', '.join(source.kinds)}"
        f"{', then ' + ', '.join(source.later) if drifts else ''}.",
        96,
        sampled=sampled,
        distinct=len(loaded) // (4 if drifts else 2),
    )


def synthetic(workload: str, geometry: str, *, law: str | None, sampled: bool) -> Asked:
    """Return a synthetic workload.

    Raises
    ------
    ValueError
        If the law is none.
    """
    shape = GEOMETRIES[geometry]
    source = Synthetic(WORKLOADS[workload], shape, sampled=sampled)
    return Asked(
        source,
        parse_law(law or f"{geometry}-mi300x", shape.n_experts),
        f"Synthetic workload {workload!r} on {geometry}: {shape.n_experts} experts per layer, {shape.top_k} per token.",
        512,
        sampled=sampled,
        distinct=source.requests,
    )

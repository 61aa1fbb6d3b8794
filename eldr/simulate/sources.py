"""The requests that a command line asks for."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from eldr.core.step_time import StepTime
from eldr.fit.samples import FitError
from eldr.sim import traces
from eldr.simulate.captured import Captured
from eldr.simulate.contenders import usual
from eldr.simulate.effect import in_effect
from eldr.simulate.logged import read_logs
from eldr.simulate.population import Source
from eldr.simulate.step_times import parse_step_time
from eldr.simulate.synthetic import QWEN3_30B, WORKLOADS, Synthetic

_BURSTY = 4.0


POLICIES = ",".join(usual())
"""Compared by default."""
BATCH = 32.0
"""Requests of an engine by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How logs are read.

    Attributes
    ----------
    limit : int
        Records kept.
    last : float
        How far back from the newest record, seconds.
    """

    model: str | None
    limit: int
    last: float
    step_time: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Requests and the command's defaults for them.

    Attributes
    ----------
    words : str
        What the requests are.
    output_tokens : int or None
        None: each request has its own length.
    distinct : int
        Requests that there are to draw from.
    notes : tuple of str
        Caveats of the figures.
    speeds : tuple of float
        Of the engines, times as long as the step-time model.
    policies : str
        As ``--policies`` takes them.
    batch : float or None
        Mean batch of an engine; None: what the log's own rate leads to.
    has_rate : bool
        Whether their rate of arrival is known.
    """

    source: Source
    step_time: StepTime
    words: str
    output_tokens: int | None
    sampled: bool
    distinct: int
    notes: tuple[str, ...] = ()
    engines: int = 16
    speeds: tuple[float, ...] = (1.0,)
    policies: str = POLICIES
    batch: float | None = BATCH
    has_rate: bool = False


def from_cluster(
    name: str, reading: Reading, *, namespace: str | None, context: str | None, kubeconfig: Path | None = None
) -> Asked:
    """Return the requests that a deployment's routers have logged, and what is in effect there.

    Raises
    ------
    eldr.fit.samples.FitError
        If the deployment cannot be read, or its logs do not carry a simulation.
    ValueError
        If the step-time model is none.
    """
    from eldr.simulate.cluster import Cluster  # brings the client library

    with tempfile.TemporaryDirectory(prefix="eldr-simulate-") as folder:
        deployment = Cluster(context, namespace, str(kubeconfig) if kubeconfig else None).find(
            name, Path(folder)
        )
        own = in_effect(deployment.resource, deployment.states)
        if not any(file.stat().st_size for log in deployment.logs for file in log.iterdir()):
            raise FitError(
                "NoSamples",
                f"the routers of {name} have logged no request yet; raise spec.signatures.samplePercent if it is low, send traffic, "
                "and try again",
            )
        learned = (
            ""
            if reading.step_time or not own.step_time
            else " The step time is what its routers have learned."
        )
        notes = own.notes
        if own.speeds is not None:
            listed = ", ".join(f"{speed:g}" for speed in own.speeds)
            learned += f" Step times of its engines relative to the step-time model, as routers have learned them: {listed}."
        else:
            notes = (
                *notes,
                "its routers have not learned how fast single engines are: all are simulated alike",
            )
        reading = replace(
            reading, model=reading.model or own.model, step_time=reading.step_time or own.step_time
        )
        asked = from_logs(list(deployment.logs), reading, share=own.share)
    return replace(
        asked,
        words=f"{own.words}{learned} {asked.words}",
        notes=(*deployment.notes, *notes, *asked.notes),
        engines=own.engines,
        speeds=own.speeds or asked.speeds,
        policies=own.policies,
        batch=None if asked.has_rate else asked.batch,
    )


def from_logs(paths: list[Path], reading: Reading, *, share: float = 1.0) -> Asked:
    """Return the requests of logs.

    Parameters
    ----------
    paths : list of Path
        Directories or segments.
    share : float
        Of the requests that were logged, above 0.

    Raises
    ------
    eldr.fit.samples.FitError
        If the logs do not carry a simulation.
    ValueError
        If the step-time model is none.
    """
    step_time = reading.step_time
    logged = read_logs(
        paths,
        model=reading.model,
        limit=reading.limit,
        seed=0,
        last=reading.last,
        share=share,
    )
    calibration, requests = logged.known.calibration, logged.known.requests
    notes = logged.damaged
    if (known := requests.arrivals) and known.burstiness > _BURSTY:
        times = f"{known.burstiness:.0f} times the variance of random ones"
        notes = (*notes, f"the log's requests come in bursts ({times}), simulated ones do not")
    if step_time is None:
        notes = (
            *notes,
            "the step time is that of Qwen3-30B on MI300X; give your accelerator's with --step-time",
        )
    skipped = "".join(f", {count} left out ({reason})" for reason, count in logged.skipped.items())
    return Asked(
        logged,
        parse_step_time(step_time or "qwen3-30b-mi300x", requests.n_experts),
        f"Requests of {logged.model!r} from the log: centroids from the older {len(calibration)}, simulated are the newer "
        f"{len(requests)}{skipped}.",
        None,
        sampled=False,
        distinct=len(requests),
        notes=notes,
        has_rate=requests.arrivals is not None,
    )


def from_captured(step_time: str | None) -> Asked:
    """Return the captured activations that come with the package, step by step; ValueError if the step-time model is none."""
    loaded = traces.load()
    return Asked(
        Captured(loaded, loaded.kinds),
        parse_step_time(step_time or "qwen3-30b-mi300x", loaded.n_experts),
        f"Captured activations of a small trained model, kinds {', '.join(loaded.kinds)}.",
        96,
        sampled=True,
        distinct=len(loaded) // 2,
    )


def synthetic(workload: str, step_time: str | None) -> Asked:
    """Return a synthetic workload on Qwen3-30B's layers; ValueError if the step-time model is none."""
    source = Synthetic(WORKLOADS[workload], QWEN3_30B)
    return Asked(
        source,
        parse_step_time(step_time or "qwen3-30b-mi300x", QWEN3_30B.n_experts),
        f"Synthetic workload {workload!r}: {QWEN3_30B.n_experts} experts per layer, {QWEN3_30B.top_k} per token.",
        512,
        sampled=False,
        distinct=source.requests,
    )

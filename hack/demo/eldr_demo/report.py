"""The table and the picture of a run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from eldr_demo.load import Outcome
from eldr_demo.telemetry import Sampler


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the demo; times in seconds on the loop's clock.

    Attributes
    ----------
    name : str
    policy : str
        In effect when the phase ended.
    measured_from, ended : float
        The span that figures are taken from: after the pool has settled.
    """

    name: str
    policy: str
    measured_from: float
    ended: float


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one phase."""

    phase: Phase
    requests: int
    failures: int
    batch: float
    active_experts: float
    against_random: float
    tpot: tuple[float, float, float]


def measure(phase: Phase, outcomes: Sequence[Outcome], sampler: Sampler) -> Row:
    """Return the figures of a phase: TPOT of requests that ran inside the measured span, steps of that span."""
    mine = [outcome for outcome in outcomes if outcome.phase == phase.name]
    inside = [
        o.tpot
        for o in mine
        if o.error is None and o.first_token >= phase.measured_from and o.ended <= phase.ended
    ]
    steps = sampler.between(phase.measured_from, phase.ended)
    p50, p95, p99 = np.percentile(inside, [50, 95, 99]) if inside else (float("nan"),) * 3
    return Row(
        phase=phase,
        requests=len(mine),
        failures=sum(outcome.error is not None for outcome in mine),
        batch=steps.batch,
        active_experts=steps.active_experts,
        against_random=steps.against_random,
        tpot=(float(p50), float(p95), float(p99)),
    )


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the table that the demo prints."""
    result = Table(
        title=f"ELDR demo: {title}",
        caption="* active experts against batches of the same size, drawn at random from the tokens of the phase",
    )
    for name in ("phase", "policy", "requests", "failed", "batch", "active experts", "vs random *"):
        result.add_column(name, justify="left" if name in {"phase", "policy"} else "right")
    for name in ("TPOT P50", "P95", "P99 (ms)"):
        result.add_column(name, justify="right")
    for row in rows:
        result.add_row(
            row.phase.name,
            row.phase.policy,
            str(row.requests),
            str(row.failures),
            f"{row.batch:.1f}",
            f"{row.active_experts:.2f}",
            f"{100 * row.against_random:+.1f} %",
            *(f"{value * 1e3:.1f}" for value in row.tpot),
        )
    return result


def draw(
    path: Path,
    phases: Sequence[Phase],
    outcomes: Sequence[Outcome],
    sampler: Sampler,
    activations: dict[str, float],
) -> None:
    """Draw TPOT and active experts over time with the activations marked."""
    origin = sampler.samples[0][0]
    figure = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    done = sorted((o.ended - origin, o.tpot * 1e3) for o in outcomes if o.error is None)
    times, tpots = np.array(done).T
    upper.plot(times, tpots, ".", markersize=2, alpha=0.3, color="tab:blue", label="requests")
    grid = np.arange(times[0], times[-1], 1.0)
    around = [tpots[np.abs(times - t) <= 4] for t in grid]
    medians = [np.median(near) if near.size else np.nan for near in around]
    upper.plot(grid, medians, color="tab:blue", label="median over 8 s")
    upper.set(ylabel="TPOT (ms)", ylim=(0, float(np.percentile(tpots, 99.5)) * 1.2))
    windows = [
        (at - origin, steps.active_experts, steps.batch)
        for (_, before), (at, after) in itertools.pairwise(sampler.samples[::4])
        if (steps := after - before).steps
    ]
    at, experts, batch = zip(*windows, strict=True)
    lower.plot(at, experts, color="tab:orange", label="active experts per step")
    lower.plot(at, batch, color="tab:grey", linewidth=1, label="batch")
    lower.set(xlabel="seconds", ylabel="per decode step", ylim=(0, None))
    for phase in phases:
        lower.text((phase.measured_from + phase.ended) / 2 - origin, 0.5, phase.name, ha="center", fontsize=8)
        for axis in (upper, lower):
            axis.axvspan(phase.measured_from - origin, phase.ended - origin, alpha=0.07, color="tab:green")
    for name, moment in activations.items():
        for axis in (upper, lower):
            axis.axvline(moment - origin, color="tab:red", linestyle="--", linewidth=1)
        upper.text(moment - origin, upper.get_ylim()[1], f" {name}", color="tab:red", fontsize=8, va="top")
    for axis in (upper, lower):
        axis.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=120)

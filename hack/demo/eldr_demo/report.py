"""The figures of a run, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from eldr_demo.compare import Change, compare
from eldr_demo.load import Outcome
from eldr_demo.plan import BASE, Measure
from eldr_demo.telemetry import Sampler

KEPT_UP = 0.97
"""Least share of the time that simulated engines, which always have requests here, compute on a machine that is free."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One measured phase; times in seconds on the loop's clock.

    Attributes
    ----------
    measured_from, ended : float
        The span that figures are taken from: after the pool has settled.
    """

    step: Measure
    measured_from: float
    ended: float


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one phase.

    Attributes
    ----------
    tpot : tuple of float
        Mean, P50 and P99, seconds.
    changes : dict of str to Change or None
        Against the balancer's phase with the same requests; None for that phase itself.
    kept_up : float
        Share of the time that engines computed; nan where they do not tell.
    """

    phase: Phase
    requests: int
    failures: int
    batch: float
    experts_per_token: float
    against_random: float
    tpot: tuple[float, float, float]
    changes: Mapping[str, Change] | None
    kept_up: float = float("nan")

    @property
    def is_starved(self) -> bool:
        """Whether engines did not get the processors that they needed, so that its times are not the policy's."""
        return self.kept_up < KEPT_UP


def measure(
    phases: Sequence[Phase], outcomes: Sequence[Outcome], sampler: Sampler, *, paced: bool
) -> list[Row]:
    """Return the figures: TPOT of requests that ran inside the measured spans, steps of those spans.

    Parameters
    ----------
    paced : bool
        Whether engines report what steps should take, and not what they took.
    """
    inside = {phase: _inside(phase, outcomes) for phase in phases}
    rows = []
    for phase in phases:
        base = next((p for p in phases if p.step.policy == BASE and p.step.mix == phase.step.mix), phase)
        mine = [outcome for outcome in outcomes if outcome.phase == phase.step.name]
        times = list(inside[phase].values())
        p50, p99 = np.percentile(times, [50, 99]) if times else (float("nan"),) * 2
        steps = sampler.between(phase.measured_from, phase.ended)
        rows.append(
            Row(
                phase=phase,
                requests=len(mine),
                failures=sum(outcome.error is not None for outcome in mine),
                batch=steps.batch,
                experts_per_token=steps.experts_per_token,
                against_random=steps.against_random,
                tpot=(float(np.mean(times)) if times else float("nan"), float(p50), float(p99)),
                changes=None if base is phase else compare(inside[base], inside[phase]),
                kept_up=steps.kept_up if paced else float("nan"),
            )
        )
    return rows


def counts(phase: Phase, outcome: Outcome) -> bool:
    """Return whether a request tells of a phase: one that decoded inside its measured span from its first token to its last."""
    return (
        outcome.phase == phase.step.name
        and outcome.error is None
        and outcome.first_token >= phase.measured_from
        and outcome.ended <= phase.ended
    )


def _inside(phase: Phase, outcomes: Sequence[Outcome]) -> dict[int, float]:
    return {o.number: o.tpot for o in outcomes if counts(phase, o)}


def table(rows: Sequence[Row], title: str, code: str) -> Table:
    """Return the table that the demo prints; ``code`` says what ran, and when."""
    result = Table(
        title=f"ELDR demo: {title}",
        caption=(
            f"{code}. Experts: distinct ones of the step that makes a token, mean over the layers. Vs random: against batches of the same "
            f"sizes drawn at random. %: against {BASE}, same requests. In brackets: the range that resampling them gives. "
            "It is no confidence interval, as other requests differ more."
        ),
    )
    left = {"mix", "policy", "centroids"}
    for name in ("mix", "policy", "centroids", "requests", "failed", "batch", "experts", "vs random"):
        result.add_column(name, justify="left" if name in left else "right", no_wrap=name in left)
    for name in ("TPOT mean, ms", "P50", "P99"):
        result.add_column(name, justify="right", no_wrap=True)
    before = None
    for row in rows:
        step = row.phase.step
        if before not in (None, step.mix):
            result.add_section()
        before = step.mix
        result.add_row(
            step.mix,
            f"{step.policy} (starved)" if row.is_starved else step.policy,
            step.centroids,
            str(row.requests),
            str(row.failures),
            f"{row.batch:.1f}",
            f"{row.experts_per_token:.2f}",
            f"{100 * row.against_random:+.1f} %",
            *(
                _cell(value, None if row.changes is None else row.changes[name])
                for name, value in zip(("mean", "P50", "P99"), row.tpot, strict=True)
            ),
        )
    return result


def starved(rows: Sequence[Row]) -> list[str]:
    """Return what to say of phases whose engines were starved."""
    return [
        f"starved: {row.phase.step.name}: engines computed in {100 * row.kept_up:.0f} % of the time only, because other programs had "
        "the processors. Its times, and changes against it, are not the policy's; run the demo again on an idle machine"
        for row in rows
        if row.is_starved
    ]


def _cell(seconds: float, change: Change | None) -> str:
    text = f"{seconds * 1e3:.1f}"
    if change is None:
        return text
    value, low, high = (100 * part for part in change)
    return f"{text}\n{value:+.1f} % ({low:+.1f}, {high:+.1f})"

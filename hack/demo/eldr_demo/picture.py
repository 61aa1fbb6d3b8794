"""The picture of a run: time per token and active experts over time, one colour a policy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eldr_demo.load import Outcome
from eldr_demo.report import Phase, counts
from eldr_demo.telemetry import Sampler

COLOURS = {"JSQ": "tab:grey", "ELDR": "tab:orange", "MarginalUnion": "tab:green"}
_OTHER = "tab:purple"


def draw(
    path: Path,
    phases: Sequence[Phase],
    outcomes: Sequence[Outcome],
    sampler: Sampler,
    activations: dict[str, float],
) -> None:
    """Draw the measured phases, and when fits became active."""
    origin = sampler.samples[0][0]
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for phase in phases:
        _times(upper, phase, outcomes, origin)
        _experts(lower, phase, sampler, origin)
    good = [o.tpot * 1e3 for o in outcomes if o.error is None]
    if good:
        low, high = np.percentile(good, [0.5, 99.5])
        upper.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    upper.set(ylabel="time per output token, ms")
    lower.set(xlabel="seconds", ylabel="active experts of a token's step")
    begin, end = min(p.measured_from for p in phases), max(p.ended for p in phases)
    lower.set_xlim(begin - origin - 2, end - origin + 0.03 * (end - begin))
    for axis in (upper, lower):
        axis.spines[["top", "right"]].set_visible(False)
        for name, moment in activations.items():
            axis.axvline(moment - origin, color="tab:red", linestyle="--", linewidth=1)
            if axis is upper:  # above the axes, where no curve is
                axis.annotate(
                    f"{name}\nactive", (moment - origin, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 4),
                    textcoords="offset points", ha="center", color="tab:red", fontsize=8,
                )  # fmt: skip
    for phase in phases:
        middle = (phase.measured_from + phase.ended) / 2 - origin
        known = phase.step.centroids
        text = f"{phase.step.mix} mix" + ("" if known == "-" else f",\ncentroids {known}")
        lower.annotate(  # between the axes, where no curve is
            text, (middle, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 4), textcoords="offset points",
            ha="center", va="bottom", fontsize=8, color=_colour(phase),
        )  # fmt: skip
    named = dict.fromkeys(phase.step.policy for phase in phases)
    figure.legend(
        handles=[Patch(color=COLOURS.get(name, _OTHER), label=name) for name in named],
        loc="outside upper right", ncols=len(named), frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=120)


def _colour(phase: Phase) -> str:
    return COLOURS.get(phase.step.policy, _OTHER)


def _times(axis: Axes, phase: Phase, outcomes: Sequence[Outcome], origin: float) -> None:
    mine = [(o.ended - origin, o.tpot * 1e3) for o in outcomes if counts(phase, o)]
    if not mine:
        return
    ended, times = np.array(mine).T
    axis.plot(ended, times, ".", markersize=2, alpha=0.35, color=_colour(phase))
    span = (phase.measured_from - origin, phase.ended - origin)
    styles: tuple[tuple[int, Literal["-", ":"]], ...] = ((50, "-"), (99, ":"))
    for share, style in styles:
        value = float(np.percentile(times, share))
        axis.hlines(value, *span, colors=_colour(phase), linestyles=style, linewidth=2)
        axis.annotate(
            f"P{share} {value:.1f}", (span[1], value), xytext=(0, 2), textcoords="offset points", ha="right", va="bottom",
            fontsize=8, color=_colour(phase), bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.5, "edgecolor": "none"},
        )  # fmt: skip


def _experts(axis: Axes, phase: Phase, sampler: Sampler, origin: float) -> None:
    samples = [(at, total) for at, total in sampler.samples if phase.measured_from <= at <= phase.ended][::4]
    points = [
        (at - origin, (after - before).experts_per_token)
        for (_, before), (at, after) in itertools.pairwise(samples)
        if (after - before).requests
    ]
    if points:
        at, experts = np.array(points).T
        axis.plot(at, experts, color=_colour(phase), linewidth=2)

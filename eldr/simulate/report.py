"""Compare the policies' figures with the baseline's: as an object for JSON, and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from eldr.simulate.comparison import Outcome, Setting
from eldr.simulate.measures import Measures
from eldr.simulate.pairs import Change, change
from eldr.simulate.policies import Contender

VERSION = 3
COMPARED = "tpot_mean", "tpot_p50", "tpot_p95", "tpot_p99", "ttft_p50", "active_per_token"
_HEADS = "policy", "TPOT mean", "P50", "P95", "P99", "TTFT P50", "experts"
_LEAST = 1e-3  # change of a mean that is worth a setting
_MOST_WAITED = 0.01  # of the requests of a pool that keeps up


def as_json(setting: Setting, contenders: Sequence[Contender], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures.

    Parameters
    ----------
    contenders : sequence of Contender
        The first one is the baseline.
    outcomes : sequence of Outcome
        One per seed.

    Notes
    -----
    Times are in seconds. ``change`` holds relative differences to the baseline, ``[mean, half width]`` of a 95 % interval over
    the seeds; the half width is null with one seed.
    """
    runs = [list(row) for row in zip(*(one.measures for one in outcomes), strict=True)]
    choice = _choice(runs)
    return {
        "version": VERSION,
        "engines": len(setting.speeds),
        "rate": float(np.mean([one.rate for one in outcomes])),
        "step_time": asdict(setting.step_time),
        "speeds": setting.speeds,
        "drafts": setting.drafts.tokens,
        "accepted": setting.drafts.accepted,
        "seeds": len(outcomes),
        "recommended": None if choice is None else contenders[choice].text,
        "policies": [
            {
                "policy": contender.text,
                "set": contender.name,
                **{name: float(np.mean([asdict(run)[name] for run in own])) for name in asdict(own[0])},
                "change": {name: _finite(_against(own, runs[0], name)) for name in COMPARED},
            }
            for contender, own in zip(contenders, runs, strict=True)
        ],
    }


def _against(runs: Sequence[Measures], baseline: Sequence[Measures], name: str) -> Change:
    return change([getattr(run, name) for run in runs], [getattr(run, name) for run in baseline])


def _finite(one: Change) -> tuple[float, float | None]:
    return one.mean, None if math.isnan(one.half_width) else one.half_width


def _choice(runs: Sequence[Sequence[Measures]]) -> int | None:
    """Return the policy to set: of those that shorten the mean and are level with the best, the one with the shortest tail."""

    def against(which: int, other: int) -> tuple[float, float]:
        mean, half_width = _finite(_against(runs[which], runs[other], "tpot_mean"))
        return mean, half_width or 0.0

    shorter = {which: against(which, 0) for which in range(1, len(runs))}
    shorter = {which: one for which, one in shorter.items() if one[0] <= -_LEAST and sum(one) < 0}
    if not shorter:
        return None
    best = min(shorter, key=shorter.__getitem__)
    level = [which for which in shorter if against(which, best)[0] <= against(which, best)[1]]
    return min(level, key=lambda which: float(np.mean([run.tpot_p99 for run in runs[which]])))


def notes(
    setting: Setting, contenders: Sequence[Contender], outcomes: Sequence[Outcome], distinct: int
) -> Iterator[str]:
    """Yield the caveats of the figures.

    Parameters
    ----------
    distinct : int
        Requests that there are to draw from.
    """
    held = len(setting.speeds) * max(one.measures[0].batch for one in outcomes)
    if held > distinct:
        yield (
            f"engines hold {held:.0f} requests together, and there are {distinct} different ones: the same ones meet, "
            "which saves experts that other traffic would not save"
        )
    for which, contender in enumerate(contenders):
        if (waited := max(one.measures[which].waited for one in outcomes)) > _MOST_WAITED:
            yield (
                f"with {contender.text} {waited:.0%} of the requests came to an engine without room: "
                "its figures hold waiting, and more so the longer it runs"
            )
    if len(outcomes) == 1:
        yield "one seed gives no intervals"


def as_text(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report: what to set, what was simulated, the figures, the caveats."""
    baseline, *others = report["policies"]
    for row in others:
        if row["policy"] == report["recommended"]:
            yield (
                f"Set spec.router.policy: {row['set']}. It changes the time per token against {baseline['policy']}: "
                f"mean {_percent(row, 'tpot_mean')} %, P99 {_percent(row, 'tpot_p99')} %."
            )
    if report["recommended"] is None:
        yield f"Leave spec.router.policy as it is: no policy shortens the mean time per token against {baseline['policy']} significantly."
    constants = report["step_time"]
    yield (
        f"{report['requests']} {report['engines']} engines, {report['rate']:.3g} requests/s, batch {baseline['batch']:.1f}. A decode step "
        f"takes {1e3 * constants['fixed']:.2f} ms, {1e6 * constants['per_expert']:.0f} us for each active expert and "
        f"{1e6 * constants['per_request']:.0f} us for each request. Below {baseline['policy']}: % of change."
    )
    yield _line(_HEADS)
    *times, experts = (baseline[name] for name in COMPARED)
    yield _line((baseline["policy"], *(f"{1e3 * time:.1f} ms" for time in times), f"{experts:.1f}"))
    for row in others:
        yield _line((row["policy"], *(_percent(row, name) for name in COMPARED)))
    for note in report["notes"]:
        yield f"Note: {note}."


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:28}" + "".join(f"{cell:>13}" for cell in cells[1:])


def _percent(row: dict[str, Any], name: str) -> str:
    mean, half_width = row["change"][name]
    return f"{100 * mean:+.1f}" + (f" ±{100 * half_width:.1f}" if half_width is not None else "")

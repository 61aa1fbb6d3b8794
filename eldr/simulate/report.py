"""Compare the policies' figures with the baseline's: as an object for JSON, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy.stats import sem, t

from eldr.simulate.comparison import Setting
from eldr.simulate.measures import Measures
from eldr.simulate.policies import Contender

VERSION = 3
COMPARED = {"tpot_mean": "TPOT mean", "tpot_p50": "P50", "tpot_p99": "P99", "active_per_token": "experts"}
_LEAST = 1e-3  # change of a mean that is worth a setting
_MOST_WAITED = 0.01  # of the requests of a pool that keeps up


def as_json(
    setting: Setting, contenders: Sequence[Contender], outcomes: Sequence[Sequence[Measures]]
) -> dict[str, Any]:
    """Return the figures.

    Parameters
    ----------
    setting : Setting
    contenders : sequence of Contender
        The first one is the baseline.
    outcomes : sequence of sequence of Measures
        Of each seed, one per contender.

    Notes
    -----
    Times are in seconds. ``change`` holds relative differences to the baseline, ``[mean, half width]`` of a 95 % interval over
    the seeds; the half width is null with one seed. ``recommended`` is the policy with the least sum of mean and P99, of those that
    shorten the mean by more than chance.
    """
    runs = [[asdict(one) for one in own] for own in zip(*outcomes, strict=True)]
    rows, shorter = [], []
    for contender, own in zip(contenders, runs, strict=True):
        figures = {name: float(np.mean([one[name] for one in own])) for name in own[0]}
        changes = {name: _change(name, own, runs[0]) for name in COMPARED}
        rows.append({"policy": contender.text, "set": contender.name, **figures, "change": changes})
        mean, half_width = changes["tpot_mean"]
        if mean + (half_width or 0.0) < -_LEAST:
            shorter.append((figures["tpot_mean"] + figures["tpot_p99"], contender.text))
    return {
        "version": VERSION,
        "engines": len(setting.speeds),
        "rate": setting.rate,
        "step_time": asdict(setting.step_time),
        "speeds": setting.speeds,
        "drafts": setting.drafts.tokens,
        "accepted": setting.drafts.accepted,
        "seeds": len(outcomes),
        "recommended": min(shorter)[1] if shorter else None,
        "policies": rows,
    }


def _change(
    name: str, runs: Sequence[dict[str, float]], baseline: Sequence[dict[str, float]]
) -> tuple[float, float | None]:
    """Return the mean relative difference, seed by seed, and half of its 95 % interval (Student's t), None with one seed."""
    changes = [one[name] / other[name] - 1.0 for one, other in zip(runs, baseline, strict=True)]
    n = len(changes)
    return float(np.mean(changes)), t.ppf(0.975, n - 1) * sem(changes) if n > 1 else None


def notes(report: dict[str, Any], distinct: int) -> Iterator[str]:
    """Yield the caveats of the figures of so many different requests."""
    held = report["engines"] * report["policies"][0]["batch"]
    if held > distinct:
        yield (
            f"engines hold {held:.0f} requests together, and there are {distinct} different ones: the same ones meet, "
            "which saves experts that other traffic would not save"
        )
    for row in report["policies"]:
        if row["waited"] > _MOST_WAITED:
            yield (
                f"with {row['policy']} {row['waited']:.0%} of the requests came to an engine without room: "
                "its figures hold waiting, and more so the longer it runs"
            )
    if report["seeds"] == 1:
        yield "one seed gives no intervals"


def as_text(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a report: what to set, what was simulated, the figures, the caveats."""
    baseline, *others = report["policies"]
    set_to = {row["policy"]: f"Set spec.router.policy: {row['set']}." for row in others}
    yield set_to.get(
        report["recommended"],
        f"Leave spec.router.policy as it is: no policy shortens the mean time per token against {baseline['policy']} significantly.",
    )
    yield f"{report['requests']} {report['engines']} engines, {report['rate']:.3g} requests/s, batch {baseline['batch']:.1f}."
    yield "A decode step takes {fixed:.4g} s, {per_expert:.3g} s for each active expert, {per_request:.3g} s for each request.".format(
        **report["step_time"]
    )
    yield _line("policy", COMPARED.values())
    cells = [baseline[name] for name in COMPARED]
    yield _line(baseline["policy"], [*(f"{1e3 * time:.1f} ms" for time in cells[:-1]), f"{cells[-1]:.1f}"])
    for row in others:
        yield _line(row["policy"], [_percent(*row["change"][name]) for name in COMPARED])
    yield from (f"Note: {note}." for note in report["notes"])


def _line(first: str, cells: Iterable[str]) -> str:
    return f"{first:28}" + "".join(f"{cell:>14}" for cell in cells)


def _percent(mean: float, half_width: float | None) -> str:
    return f"{100 * mean:+.1f}" + ("" if half_width is None else f" ±{100 * half_width:.1f}")

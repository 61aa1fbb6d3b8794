"""The figures of a round as text. Pure."""

from __future__ import annotations

from collections import Counter

from tests.support.soak.flat import MEBI
from tests.support.soak.run import Report


def table(report: Report) -> str:
    """Return what a round showed, in Markdown."""
    round_ = report.round
    totals: Counter[str] = Counter()
    for (_, outcome), count in report.outcomes.items():
        totals[outcome] += count
    outcomes = sorted(totals, key=lambda outcome: -totals[outcome])
    what = f"{round_.seconds / 60:.1f} minutes, {round_.routers} router(s), {round_.clients} clients"
    lines = [
        f"{what}, seed {round_.seed}: {sum(totals.values())} requests, {len(report.faults)} faults",
        "",
        "| clients | " + " | ".join(outcomes) + " |",
        "|---" * (len(outcomes) + 1) + "|",
    ]
    for manner in sorted({manner for manner, _ in report.outcomes}):
        cells = (str(report.outcomes[manner, outcome] or "") for outcome in outcomes)
        lines.append(f"| {manner} | " + " | ".join(cells) + " |")
    lines.append("| all | " + " | ".join(str(totals[outcome]) for outcome in outcomes) + " |")
    lines += ["", "| what | figure |", "|---|---|"]
    lines += [f"| disturbance: {kind} | {count} |" for kind, count in sorted(report.disturbances.items())]
    for index, (grown, (before, most, after)) in enumerate(zip(report.growths, report.files, strict=True)):
        sizes = ", ".join(f"{size / MEBI:.1f}" for size in (grown.early, grown.late, grown.peak))
        lines.append(f"| router{index}: memory early, late, peak, MiB | {sizes} |")
        lines.append(f"| router{index}: open files before, most, after | {before}, {most}, {after} |")
    return "\n".join(lines)

"""The figures of a round as text. Pure."""

from __future__ import annotations

from tests.support.soak.flat import MEBI
from tests.support.soak.run import Report


def table(report: Report) -> str:
    """Return what a round showed, a figure a line."""
    round_ = report.round
    what = f"{round_.seconds / 60:.1f} minutes, {round_.routers} router(s), {round_.clients} clients, seed {round_.seed}"
    lines = [f"{what}: {sum(report.outcomes.values())} requests, {len(report.faults)} faults"]
    lines += [f"clients {manner}, {outcome}: {n}" for (manner, outcome), n in sorted(report.outcomes.items())]
    lines += [f"disturbance {kind}: {count}" for kind, count in sorted(report.disturbances.items())]
    for index, (grown, files) in enumerate(zip(report.growths, report.files, strict=True)):
        sizes = ", ".join(f"{size / MEBI:.1f}" for size in (grown.early, grown.late, grown.peak))
        lines.append(
            f"router{index}: memory early, late, peak: {sizes} MiB; files before, most, after: {files}"
        )
    return "\n".join(lines)

"""The picture of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the change of TPOT at P50 and P99 against the first policy, one row of panels per setting."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = report["settings"]
    baseline, *names = (policy["policy"] for policy in settings[0]["policies"])
    height = 1.2 + len(settings) * (0.9 + 0.3 * len(names))
    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(settings), 3, squeeze=False, sharey=True)
    grid[0, 0].invert_yaxis()  # of all panels: they share it
    panels = (("tpot_p50", "TPOT P50"), ("tpot_p99", "TPOT P99"), ("active_per_token", "experts per token"))
    for row, setting in zip(grid, settings, strict=True):
        for panel, (name, title) in zip(row, panels, strict=True):
            found = [policy["change"][name] for policy in setting["policies"][1:]]
            means = [100 * mean for mean, _ in found]
            widths = [100 * (half or 0.0) for _, half in found]
            colours = ["tab:green" if mean < 0 else "tab:red" for mean in means]
            panel.barh(range(len(names)), means, xerr=widths, color=colours, capsize=3)
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_yticks(range(len(names)), names)
            panel.set(xlabel=f"% against {baseline}", title=title)
        row[0].set_ylabel(f"{setting['engines']} engines\n{setting['rate']:.3g} requests/s")
    figure.savefig(path, dpi=120)

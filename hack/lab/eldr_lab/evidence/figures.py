"""The pictures: one colour a policy, legends beside the curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import (
    BAND,
    FORMS,
    JSQ,
    LOCALITY,
    MARGINAL,
    PRIOR,
    ROLLING,
    ROLLING_PRIOR,
    ROLLING_TAUS,
    SWEPT_ROLLING,
    TAUS,
)
from eldr_lab.evidence.names import COLOURS, model, place, policy
from eldr_lab.evidence.results import BEST, FIRST_P50, FIRST_P99, MEAN, P50, P99, STEP_EXPERTS, Results

_SHOWN = (JSQ, "Domain", BAND, MARGINAL, PRIOR)
_MEASURED = {"RoundRobin": "black", "ELDR": COLOURS[BAND]}


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis in grid.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, grid.tolist()


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes from the same numbers


def rates(results: Results, folder: Path, *, relative: bool) -> None:
    """Draw time per token by rate, one picture a workload; in milliseconds, or against JSQ."""
    shown = _SHOWN[1:] if relative else _SHOWN
    there = {"ELDR": COLOURS[BAND]} if relative else _MEASURED
    stem = "changes" if relative else "rates"
    for workload in dict.fromkeys(workload for _, workload in results.kinds("main")):
        geometries = [geometry for geometry, kind in results.kinds("main") if kind == workload]
        figure, grid = _panels(2, len(geometries), (4.4, 3.2))
        for column, geometry in enumerate(geometries):
            cells = results.cells("main", workload, geometry)
            x = [cell.rate for cell in cells]
            for row, measure in enumerate((P50, P99)):
                axis = grid[row][column]
                for name in shown:
                    if relative:
                        found = [results.change([cell], name, JSQ, measure) for cell in cells]
                        widths = [one.high - one.mean for one in found]
                        axis.errorbar(
                            x,
                            [one.mean for one in found],
                            widths,
                            fmt="-o",
                            color=COLOURS[name],
                            markersize=4,
                            capsize=2,
                        )
                    else:
                        y = [1e3 * results.mean(cell, name, measure) for cell in cells]
                        axis.plot(x, y, "-o", color=COLOURS[name], markersize=4)
                for name, colour in there.items():
                    y = [published.measured()[geometry, workload, name, rate][row] for rate in x]
                    if relative:
                        base = [published.measured()[geometry, workload, JSQ, rate][row] for rate in x]
                        y = [100 * (a / b - 1) for a, b in zip(y, base, strict=True)]
                    axis.plot(x, y, ":", color=colour, linewidth=1.5)
                unit = "% against JSQ" if relative else "ms per token"
                axis.set(xlabel="requests/s", ylabel=f"P{(50, 99)[row]}, {unit}")
                if relative:
                    axis.axhline(0, color="black", linewidth=0.8)
            grid[0][column].set_title(model(geometry))
        handles = [
            Line2D([], [], color=COLOURS[name], marker="o", markersize=4, label=policy(name))
            for name in shown
        ]
        handles += [
            Line2D([], [], color=colour, linestyle=":", label=f"published: {name}")
            for name, colour in (("round robin", "black"), ("band (min-2, refit)", COLOURS[BAND]))
            if colour in there.values()
        ]
        figure.legend(
            handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9
        )
        _save(figure, folder / f"{stem}-{workload}.png")


def headline(results: Results, folder: Path) -> None:
    """Draw the band against the best balancer beside the published numbers."""
    kinds = results.kinds("main")
    figure, grid = _panels(1, 2, (6.5, 3.4))
    for quantile, measure in enumerate((P50, P99)):
        axis = grid[0][quantile]
        for at, (geometry, workload) in enumerate(kinds):
            cells = results.cells("main", workload, geometry)
            for shift, name in ((-0.3, BAND), (-0.1, ROLLING)):
                change = results.change(cells, name, BEST, measure)
                axis.bar(
                    at + shift,
                    change.mean,
                    0.2,
                    yerr=change.high - change.mean,
                    color=COLOURS[name],
                    capsize=2,
                )
            axis.bar(at + 0.1, published.HEADLINE[geometry, workload][quantile], 0.2, color="tab:olive")
            axis.bar(
                at + 0.3, published.against_best(geometry, workload, "ELDR", quantile), 0.2, color="tab:blue"
            )
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(kinds)), [f"{model(g)}\n{w}" for g, w in kinds], fontsize=7)
        axis.set_ylabel(f"P{(50, 99)[quantile]}, % against the best balancer")
    named = ((COLOURS[BAND], "band, simulated"), (COLOURS[ROLLING], "band, min-2, refit, simulated"), ("tab:olive", "band, paper"),
             ("tab:blue", "band, artifact (min-2, refit)"))  # fmt: skip
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in named],
        loc="outside upper center",
        ncols=4,
        frameon=False,
    )
    _save(figure, folder / "headline.png")


def bars(
    results: Results, folder: Path, experiment: str, names: Sequence[str], label: Callable[[str, float], str]
) -> None:
    """Draw mean and P99 against JSQ of an experiment's cells."""
    cells = results.cells(experiment)
    figure, grid = _panels(1, 2, (6.0, 3.2))
    width = 0.8 / len(names)
    for axis, measure, title in zip(grid[0], (MEAN, P99), ("mean", "P99"), strict=True):
        for which, name in enumerate(names):
            for at, cell in enumerate(cells):
                change = results.change([cell], name, JSQ, measure)
                axis.bar(at + (which - (len(names) - 1) / 2) * width, change.mean, width, yerr=change.high - change.mean,
                         color=COLOURS[name], capsize=2)  # fmt: skip
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(cells)), [label(cell.workload, cell.rate) for cell in cells], fontsize=8)
        axis.set_ylabel(f"{title}, % against JSQ")
    figure.legend(handles=[Patch(color=COLOURS[name], label=policy(name)) for name in names], loc="outside upper center",
                  ncols=min(5, len(names)), frameon=False, fontsize=9)  # fmt: skip
    _save(figure, folder / f"{experiment}.png")


def experts(results: Results, folder: Path) -> None:
    """Draw active experts of a step by rate."""
    kinds = results.kinds("main")
    figure, grid = _panels(1, len(kinds), (3.6, 3.0))
    for axis, (geometry, workload) in zip(grid[0], kinds, strict=True):
        cells = results.cells("main", workload, geometry)
        for name in _SHOWN:
            axis.plot([cell.rate for cell in cells], [results.mean(cell, name, STEP_EXPERTS) for cell in cells], "-o",
                      color=COLOURS[name], markersize=4)  # fmt: skip
        axis.set(title=place(geometry, workload), xlabel="requests/s", ylabel="active experts of a step")
    figure.legend(handles=[Line2D([], [], color=COLOURS[name], marker="o", label=policy(name)) for name in _SHOWN],
                  loc="outside upper center", ncols=len(_SHOWN), frameon=False)  # fmt: skip
    _save(figure, folder / "experts.png")


def taus(results: Results, folder: Path) -> None:
    """Draw P50 and P99 against round robin (published) and JSQ (simulated) by the width of the band."""
    kinds = results.kinds("tau")
    columns = -(-len(kinds) // 2)
    figure, grid = _panels(2, columns, (4.2, 2.8))
    for at, (geometry, workload) in enumerate(kinds):
        axis = grid[at % 2][at // 2]
        cells = results.cells("tau", workload, geometry)
        known = published.SWEPT[geometry, workload]
        base = published.SWEPT_ROUND_ROBIN[geometry, workload]
        for quantile, (measure, colour) in enumerate(((P50, "tab:orange"), (P99, "tab:purple"))):
            y = [results.change(cells, f"ELDR:tau={tau}", JSQ, measure).mean for tau in TAUS[:-1]]
            axis.plot([float(tau) for tau in TAUS[:-1]], y, "-o", color=colour, markersize=4)
            y = [results.change(cells, name, JSQ, measure).mean for name in SWEPT_ROLLING]
            axis.plot([float(tau) for tau in ROLLING_TAUS], y, "--^", color=colour, markersize=3)
            y = [100 * (times[quantile] / base[quantile] - 1) for times in known.values()]
            axis.plot([float(tau) for tau in known], y, ":s", color=colour, markersize=3)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(place(geometry, workload), fontsize=9)
        axis.set(xlabel="tau", ylabel="% against a balancer")
    handles = [Line2D([], [], color="tab:orange", label="P50"), Line2D([], [], color="tab:purple", label="P99"),
               Line2D([], [], color="black", marker="o", label="simulated"),
               Line2D([], [], color="black", linestyle="--", marker="^", label="simulated, min-2, refit"), Line2D([], [], color="black", linestyle=":", marker="s", label="published (min-2, refit)")]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    _save(figure, folder / "tau.png")


def forms(results: Results, folder: Path) -> None:
    """Draw rho of every form of signature."""
    kinds = results.kinds("main")
    figure, grid = _panels(1, 1, (7.0, 3.0))
    axis = grid[0][0]
    shades = ("tab:orange", "tab:grey", "tab:green", "tab:purple")
    for which, name in enumerate(FORMS):
        for at, kind in enumerate(kinds):
            rho = results.fact(*kind, f"rho {name}")
            axis.bar(
                at + (which - 1.5) * 0.2,
                rho.mean,
                0.2,
                yerr=rho.high - rho.mean,
                color=shades[which],
                capsize=2,
            )
    axis.set_xticks(range(len(kinds)), [f"{model(geometry)}\n{workload}" for geometry, workload in kinds])
    axis.set_ylabel("rho with decode experts")
    handles = [Patch(color=shades[which], label=name.replace("_", " x ")) for which, name in enumerate(FORMS)]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(FORMS), frameon=False)
    _save(figure, folder / "forms.png")


def first_tokens(results: Results, folder: Path) -> None:
    """Draw time to first token by rate, one picture a workload."""
    for workload in dict.fromkeys(workload for _, workload in results.kinds("main")):
        geometries = [geometry for geometry, kind in results.kinds("main") if kind == workload]
        figure, grid = _panels(1, len(geometries), (4.4, 3.0))
        for axis, geometry in zip(grid[0], geometries, strict=True):
            cells = results.cells("main", workload, geometry)
            x = [cell.rate for cell in cells]
            for name in _SHOWN:
                for measure, line in ((FIRST_P50, "-o"), (FIRST_P99, ":o")):
                    y = [1e3 * results.mean(cell, name, measure) for cell in cells]
                    axis.plot(x, y, line, color=COLOURS[name], markersize=3)
            axis.set(title=model(geometry), xlabel="requests/s", ylabel="first token, ms")
            axis.set_ylim(bottom=0)
        handles = [Line2D([], [], color=COLOURS[name], marker="o", label=policy(name)) for name in _SHOWN]
        handles += [
            Line2D([], [], color="black", linestyle="-", label="P50"),
            Line2D([], [], color="black", linestyle=":", label="P99"),
        ]
        figure.legend(
            handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9
        )
        _save(figure, folder / f"first-{workload}.png")


def draw(results: Results, folder: Path) -> None:
    """Draw everything."""
    for relative in (False, True):
        rates(results, folder, relative=relative)
    headline(results, folder)
    experts(results, folder)
    taus(results, folder)
    forms(results, folder)
    first_tokens(results, folder)
    for experiment, names in (("drift", (*LOCALITY, ROLLING, ROLLING_PRIOR)), ("uneven", LOCALITY)):
        bars(results, folder, experiment, names, lambda workload, rate: f"{workload}\n{rate:.0f}/s")

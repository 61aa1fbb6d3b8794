"""The report of a fit: JSON, text for a terminal, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eldr import contract
from eldr.core.halves import Interval
from eldr.fit.baseline import Baseline
from eldr.fit.evaluation import Evaluation
from eldr.fit.pipeline import FitResult
from eldr.fit.verdict import Verdict, percent

_BASIS = {
    "correlation": "",
    "uninformative": "(decode-time activations do not distinguish layers: all are kept)",
    "no_decode": "(too few decode-time activations: all layers are kept)",
}


def as_json(
    result: FitResult,
    verdict: Verdict,
    seconds: float,
    before: Baseline | None = None,
    active: str | None = None,
) -> dict[str, Any]:
    """Return the report object.

    :data:`eldr.contract.REPORT_KEY` plus the details of the local command.

    Parameters
    ----------
    result : FitResult
    verdict : Verdict
    seconds : float
        That it took.
    before : Baseline, optional
        What traffic before the change looks like to the new set.
    active : str, optional
        Digest of the active set.
    """
    centroids, evaluation = result.centroids, result.evaluation
    return {
        "version": contract.REPORT_VERSION,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "message": verdict.message,
        "set": None,
        "model": centroids.model,
        "samples": result.samples,
        "fitted": result.fitted,
        "skipped": result.skipped,
        "layers_kept": list(centroids.kept),
        "layers_basis": result.basis,
        "layers": centroids.n_layers,
        "experts": centroids.n_experts,
        "rho": centroids.rho,
        "weighting": centroids.weighting,
        "rho_curves": {
            name: {"layers": list(choice.order), "rho": [round(value, 4) for value in choice.curve]}
            for name, choice in result.choices.items()
        },
        "imbalance": max(result.sizes) * centroids.k / max(1, result.fitted),
        "cluster_sizes": result.sizes,
        "placement_imbalance": None if evaluation is None else evaluation.new.imbalance,
        "tau": None if evaluation is None else evaluation.band.tau,
        "single_candidate": None if evaluation is None else evaluation.band.single,
        "suggested_tau": None if evaluation is None else evaluation.band.suggested,
        **_predicted(evaluation, active),
        "baseline": None
        if result.baseline is None
        else result.baseline.as_json(
            None if evaluation is None else evaluation.saving,
            None if evaluation is None else evaluation.jsq.batch,
            before,
        ),
        "held_out": 0 if evaluation is None else evaluation.held_out,
        "batch": None if evaluation is None else evaluation.jsq.batch,
        "active_experts": None
        if evaluation is None
        else {"JSQ": evaluation.jsq.active_experts, "ELDR": evaluation.new.active_experts},
        "seconds": seconds,
    }


def failed(reason: str, message: str, seconds: float) -> dict[str, Any]:
    """Return the report of a run that could not produce a set."""
    return {
        "version": contract.REPORT_VERSION,
        "verdict": "Failed",
        "reason": reason,
        "message": message,
        "set": None,
        "samples": 0,
        "layers_kept": [],
        "layers": 0,
        "experts": 0,
        "rho": None,
        "weighting": "counts",
        "imbalance": 0.0,
        "cluster_sizes": [],
        **_predicted(None),
        "baseline": None,
        "seconds": seconds,
    }


def _predicted(evaluation: Evaluation | None, digest: str | None = None) -> dict[str, Any]:
    """Return what the new set and the active one save against JSQ, and what lies between them."""
    new, active, gain = (
        (None, None, None)
        if evaluation is None
        else (evaluation.reduction, evaluation.active_reduction, evaluation.gain)
    )
    return {
        "reduction": new and new.value,
        "reduction_interval": new and [new.low, new.high],
        "baseline_reduction": active and active.value,
        "active_reduction_interval": active and [active.low, active.high],
        "gain": gain and gain.value,
        "gain_interval": gain and [gain.low, gain.high],
        "active_harms": None if evaluation is None else evaluation.active_harms,
        "active_digest": active and digest,
    }


def print_text(report: dict[str, Any], console: Console) -> None:
    """Write the report as a table."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rho = "unknown" if report["rho"] is None else f"{report['rho']:.3f}"
    rows = [
        ("verdict", f"{report['verdict']}: {report['message']}"),
        ("samples", f"{report['samples']} usable, {report['fitted']} fitted, {report['held_out']} held out"),
        ("left out", ", ".join(f"{count} {reason}" for reason, count in report["skipped"].items()) or "none"),
        (
            "signature",
            f"{report['weighting']}, layers {_ranges(report['layers_kept'])} of {report['layers']}",
        ),
        ("rho", f"{rho} {_BASIS[report['layers_basis']]}".strip()),
        ("cluster sizes", " ".join(str(size) for size in report["cluster_sizes"])),
        ("time", f"{report['seconds']:.2f} s"),
    ]
    if experts := report["active_experts"]:
        saved = percent(Interval(report["reduction"], *report["reduction_interval"]))
        change = f"{experts['JSQ']:.1f} with JSQ, {experts['ELDR']:.1f} with this set: {saved} fewer"
        rows.insert(5, ("active experts", f"{change} (predicted at batch {report['batch']:.0f})"))
        fullest = f"{report['placement_imbalance']:.2f} of the mean on the fullest engine, predicted"
        rows.insert(6, ("load", fullest))
        alone = f"{report['single_candidate']:.0%} of decisions have one candidate at {report['tau']:g}"
        rows.insert(7, ("tau", f"{alone}, half of them would at {report['suggested_tau']:.3f}"))
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)


def _ranges(layers: list[int]) -> str:
    """Return layers as ``0-3, 7``."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw rho by layers, cluster sizes and predicted active experts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    curve, sizes, experts = figure.subplots(1, 3)
    for name, choice in report["rho_curves"].items():
        curve.plot(range(1, len(choice["rho"]) + 1), choice["rho"], marker="o", markersize=3, label=name)
    if report["rho_curves"]:
        curve.axvline(len(report["layers_kept"]), color="grey", linestyle=":", label="kept")
        curve.legend()
    curve.set(xlabel="layers in the signature", ylabel="Spearman's rho", title="Layer choice")
    sizes.bar(range(len(report["cluster_sizes"])), report["cluster_sizes"])
    sizes.set(xlabel="decode slot", ylabel="records", title="Cluster sizes")
    if report["active_experts"]:
        names = list(report["active_experts"])
        bars = experts.bar(
            names, [report["active_experts"][name] for name in names], color=["tab:grey", "tab:blue"]
        )
        experts.bar_label(bars, fmt="%.1f")
        experts.set(ylabel="experts per layer and step", title=f"Predicted at batch {report['batch']:.0f}")
    else:
        experts.set_axis_off()
    figure.savefig(path, dpi=120)

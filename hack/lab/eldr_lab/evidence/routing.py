"""What the routing of a real model says of signatures, by ``make -C hack/lab correlation``: gate scores, which simulated counts do not tell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eldr_bench.machine import ROOT
from eldr_lab.evidence import published
from eldr_lab.evidence.intervals import Interval, changes
from eldr_lab.evidence.markdown import section, table
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict, judge

FIGURES = ROOT / "docs" / "benchmarks" / "correlation.json"
_DECODING = "sampled, temperature 0.8"
"""Nearer to real text than greedy decoding of so small a model."""
_FORMS = {"counts x idf": "counts_idf", "gate probability": "probability", "binary": "binary"}
_TOUCHED = "a prompt of this small model touches most cells of its 4 layers: having touched one says little"
_MEASURES = ("tpot_p50", "tpot_p99", "active_per_token")


def read(figures: Path = FIGURES) -> Mapping[str, Any] | None:
    """Return what was measured; None if it was not."""
    if not figures.exists():
        return None
    found: Mapping[str, Any] = json.loads(figures.read_text())[_DECODING]
    return found


def rows(measured: Mapping[str, Any]) -> Iterator[Row]:
    """Return published numbers that simulated counts do not tell beside ours."""
    name = "gate probability"
    ours, number = Interval(measured["forms"][name]["chosen"], float("nan")), published.RHO[_FORMS[name]]
    yield Row(f"trained model: rho of {name}", ours, number, number, f"{number:.2f} (paper, mean)", judge(ours, number, number, least=0.05), "", 2)  # fmt: skip
    number = published.IDF_AGAINST_GATE
    yield row(
        "trained model: band by counts x idf, P50 against the band by gate probabilities",
        _change(measured, "counts x idf", "gate probability", "tpot_p50"), number, number, f"{number:+.1f} (paper, mean)",
        {Verdict.NOT: f"{_TOUCHED}, and weighing by rarity drops what counts tell"},
    )  # fmt: skip


def forms(measured: Mapping[str, Any] | None) -> str:
    """Return the section."""
    title = "Signatures of real routing"
    if measured is None:
        return section(title, "`make -C hack/lab correlation` has not been run.")
    known = {name: published.RHO[key] for name, key in _FORMS.items()}
    found = [
        (
            name,
            f"{rho['all']:.3f}",
            f"{rho['chosen']:.3f}",
            f"{known[name]:.2f}" if name in known else "",
            *(str(_change(measured, name, "JSQ", measure)) for measure in _MEASURES),
        )
        for name, rho in measured["forms"].items()
    ]
    return section(
        title,
        f"{measured['requests']} requests of real text through the small trained model, {measured['experts']} experts in each of 4 layers, {_DECODING}; how: "
        "[correlation](benchmarks/correlation.md). Spearman's rho with all layers and with those chosen greedily; then the band with centroids of each form "
        "in a simulated pool where every step uses the experts that it really used, % against JSQ:",
        table(("form", "rho", "chosen layers", "paper", "P50", "P99", "experts per token"), found),
        f"Weighing by rarity changes P50 by {_change(measured, 'counts x idf', 'counts', 'tpot_p50')} % against plain counts here: a prompt touches "
        f"{100 * measured['touched']:.0f} % of all cells, and what nearly all touch weighs nearly nothing. `eldr fit` keeps weights only where they raise rho.",
    )


def _change(measured: Mapping[str, Any], name: str, baseline: str, measure: str) -> Interval:
    ours, theirs = (measured["pools"][one][measure] for one in (name, baseline))
    return changes(ours, theirs)

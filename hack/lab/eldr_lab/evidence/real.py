"""What was measured on real engines, by ``make -C hack/lab bench-steps`` and ``make -C hack/lab bench-policies``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from eldr_lab.evidence.markdown import section, table
from eldr_lab.steps.law_bench import FIGURES as LAWS
from eldr_lab.steps.policies_page import FIGURES as POLICIES
from eldr_lab.steps.policies_page import NAMES, PICTURE, table_rows, title

TITLE = "On real engines"


def read(policies: Path = POLICIES, laws: Path = LAWS) -> str:
    """Return the section; it says which command is missing where one has not been run yet."""
    about = (
        "Stock vLLM on CPUs, a small trained model with wide experts, real text, the router's own policies, unions and learned law: the "
        "strongest evidence that there is without accelerators. How it was measured: "
        "[steps](benchmarks/steps.md), [placement](benchmarks/policies.md)."
    )
    parts = [about]
    if laws.exists():
        parts.append(_laws(json.loads(laws.read_text())))
    else:
        parts.append("`make -C hack/lab bench-steps` has not been run.")
    if not policies.exists():
        return section(TITLE, *parts, "`make -C hack/lab bench-policies` has not been run.")
    found = json.loads(policies.read_text())
    for pool in found["pools"]:
        head, *rows = table_rows(pool)
        parts += [
            f"**{title(pool)}**, {pool['requests']} requests measured under each policy:",
            table(head, rows),
        ]
    parts += ["![Changes against JSQ](images/policies.png)", _verdicts(found["pools"])]
    return section(TITLE, *parts)


def copy_pictures(folder: Path) -> None:
    """Put the pictures that the section shows into a folder, if they are not there."""
    if PICTURE.exists() and PICTURE.parent.resolve() != folder.resolve():
        shutil.copy(PICTURE, folder)


def _laws(laws: dict[str, Any]) -> str:
    told = []
    for dtype, law in laws.items():
        fixed, expert, request = (1e3 * constant for constant in law["constants"])
        told.append(
            f"{dtype}: T = {fixed:.1f} + {expert:.3f} A + {request:.3f} B ms, R² {law['r2']:.3f} (of batch alone {law['r2_batch']:.3f})"
        )
    return "Steps follow their active experts. " + "; ".join(told) + "."


def _verdicts(pools: list[dict[str, Any]]) -> str:
    """Say of every policy and pool whether its intervals exclude zero."""
    rows = []
    for pool in pools:
        for name, changes in pool["changes"].items():
            cells = [_verdict(*changes[measure]) for measure in ("TPOT mean", "TPOT P50", "TPOT P99")]
            rows.append((title(pool), NAMES.get(name, name), *cells))
    return table(("pool", "policy", "TPOT mean", "P50", "P99"), rows)


def _verdict(change: float, low: float, high: float) -> str:
    del change
    return (
        "shorter in these traces" if high < 0 else "longer in these traces" if low > 0 else "not told apart"
    )

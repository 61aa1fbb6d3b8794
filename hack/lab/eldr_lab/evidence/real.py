"""What was measured on real engines, by ``make -C hack/lab bench-steps`` and ``make -C hack/lab bench-policies``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from eldr_lab.evidence.markdown import section, table
from eldr_lab.steps.law_bench import FIGURES as LAWS
from eldr_lab.steps.policies_figures import FIGURES as POLICIES
from eldr_lab.steps.policies_figures import Measured, load, measured, title
from eldr_lab.steps.policies_page import PICTURE, table_rows, verdict_rows

TITLE = "On real engines"


def read(policies: Path = POLICIES, laws: Path = LAWS) -> str:
    """Return the section; it says which command is missing where one has not been run yet."""
    about = (
        "Stock vLLM on CPUs, a small trained model with wide experts, real text, the router's own policies, unions and learned step-time model: the "
        "strongest evidence that there is without accelerators. How it was measured: "
        "[steps](benchmarks/steps.md), [placement](benchmarks/policies.md)."
    )
    parts = [about]
    if laws.exists():
        parts.append(_laws(json.loads(laws.read_text())))
    else:
        parts.append("`make -C hack/lab bench-steps` has not been run.")
    found = load(policies)
    if found is None:
        return section(
            TITLE,
            *parts,
            "`make -C hack/lab bench-policies` has not been run since it measures trace by trace.",
        )
    parts.append(_batches(found))
    for pool in found["pools"]:
        head, *rows = table_rows(pool)
        parts += [
            f"**{title(pool)}**, {len(pool['traces'])} traces, {sum(pool['requests'])} requests measured under each policy:",
            table(head, rows),
        ]
    head, *rows = verdict_rows(found)
    parts += ["![Changes against JSQ](images/policies.png)", table(head, rows)]
    return section(TITLE, *parts)


def changes(policies: Path = POLICIES) -> list[Measured]:
    """Return how each policy differs from JSQ in each pool, over traces; nothing where that was not measured."""
    found = load(policies)
    return [] if found is None else measured(found)


def copy_pictures(folder: Path) -> None:
    """Put the pictures that the section shows into a folder, if they are not there."""
    if PICTURE.exists() and PICTURE.parent.resolve() != folder.resolve():
        shutil.copy(PICTURE, folder)


def _batches(found: dict[str, Any]) -> str:
    """Return the law of the machine that placement was measured on."""
    return (
        f"A step-time model belongs to its machine. The times below were measured on {found['machine']} ({' and '.join(found['dates'])}), where the same batches "
        f"gave {found['dtype']}: {_law(found['batches'])}."
    )


def _laws(laws: dict[str, Any]) -> str:
    told = [f"In {dtype}: {_law(law)}" for dtype, law in laws.items()]
    return "Steps follow their active experts. " + ". ".join(told) + "."


def _law(law: dict[str, Any]) -> str:
    fixed, expert, request = (1e3 * constant for constant in law["constants"])
    return f"T = {fixed:.1f} + {expert:.3f} A + {request:.3f} B ms, R² {law['r2']:.3f} (of batch alone {law['r2_batch']:.3f})"

"""Figures as tables, with what they were measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from eldr_bench.machine import cpu_model


def shown(value: float) -> str:
    """Return a figure with three digits, whole from a thousand on."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def row(figure: dict[str, Any]) -> str:
    """Return one table row; a missed aim is said so."""
    values = figure["values"]
    median = statistics.median(values)
    aim = figure["aim"]
    verdict = "" if aim is None else (f"{aim:g}, met" if median <= aim else f"{aim:g}, **missed**")
    spread = f"{shown(min(values))} .. {shown(max(values))}"
    return f"| {figure['name']} | {shown(median)} {figure['unit']} | {spread} | {len(values)} | {verdict} |"


def measured(conditions: str) -> str:
    """Return what was measured on: date, machine, and the conditions before."""
    return (
        f"{dt.datetime.now(tz=dt.UTC).date().isoformat()}, {cpu_model()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"Linux {platform.release().split('-')[0]}. Measured at {conditions}, afterwards {os.getloadavg()[0]:.1f}."
    )


def section(name: str, conditions: str, rows: Sequence[str]) -> str:
    """Return a heading, what was measured on, and the table."""
    head = "| what | median | spread | rounds | aim |\n|---|---|---|---|---|"
    return "\n\n".join((f"## {name.capitalize()}", conditions, "\n".join((head, *rows))))

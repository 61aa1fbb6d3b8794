"""Run every benchmark and write docs/benchmarks/README.md with the machine, medians and spread.

A benchmark is a program beside this one that prints a JSON list of figures
``{"name": str, "unit": str, "aim": float | null, "values": [float, ...]}``; smaller is better.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from eldr_steps.machine import cpu_model

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "docs" / "benchmarks" / "README.md"
BENCHMARKS = ("decision", "fit", "router")


def row(figure: dict[str, Any]) -> str:
    """Return one table row; a missed aim is said so."""
    values = figure["values"]
    median = statistics.median(values)
    aim = figure["aim"]
    verdict = "" if aim is None else (f"{aim:g}, met" if median <= aim else f"{aim:g}, **missed**")
    spread = f"{min(values):.3g} .. {max(values):.3g}"
    return f"| {figure['name']} | {median:.3g} {figure['unit']} | {spread} | {len(values)} | {verdict} |"


def main() -> None:
    """Run, render, and print the table."""
    rows = []
    for name in BENCHMARKS:
        print(f"running {name}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, HERE / f"{name}.py"], stdout=subprocess.PIPE, text=True, check=True
        )
        rows += [row(figure) for figure in json.loads(done.stdout.splitlines()[-1])]
    load = "{:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())
    text = f"""# Benchmarks

Written by `make bench` on {dt.datetime.now(tz=dt.UTC).date().isoformat()}: {cpu_model()}, {os.cpu_count()} cores, Python
{platform.python_version()}, Linux {platform.release().split("-")[0]}; load average afterwards {load}. Other programs may have run beside it: trust
ratios within one run more than absolute times. Smaller is better everywhere. Why the aims of CPU per
request are missed: [what a request costs](../development/router.md#what-it-costs). Fits of 100,000 records
are measured by `python hack/bench/fit.py --large` alone.

| what | median | spread | rounds | aim |
|---|---|---|---|---|
{chr(10).join(rows)}
"""
    OUT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""Run benchmarks and write docs/benchmarks/README.md with the machine, medians and spread.

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

import click

from eldr_steps.machine import cpu_model

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "docs" / "benchmarks" / "README.md"
FIGURES = OUT.with_name("figures.json")
BENCHMARKS = {
    "decision": ("decision.py",),
    "metro": ("metro.py",),
    "fit": ("fit.py",),
    "large fit": ("fit.py", "--large"),
    "router": ("router.py",),
}
USUAL = ("decision", "metro", "fit", "router")
INTRODUCTION = """# Benchmarks

Written by `make bench`; `make bench ONLY=decision` measures one part anew, `ONLY="large fit"` fits of 100,000 records. Other programs may have run
beside it: trust ratios within one run more than absolute times. Smaller is better everywhere. Memory is what a fit takes beside its records. Why the aims
of CPU per request are missed: [what a request costs](../development/router.md#what-it-costs). A fit of 4,000 records misses its aim for it ranks every layer on
every pair of requests: ranking a part of them chose other layers."""


def row(figure: dict[str, Any]) -> str:
    """Return one table row; a missed aim is said so."""
    values = figure["values"]
    median = statistics.median(values)
    aim = figure["aim"]
    verdict = "" if aim is None else (f"{aim:g}, met" if median <= aim else f"{aim:g}, **missed**")
    spread = f"{min(values):.3g} .. {max(values):.3g}"
    return f"| {figure['name']} | {median:.3g} {figure['unit']} | {spread} | {len(values)} | {verdict} |"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
def main(names: tuple[str, ...]) -> None:
    """Run benchmarks, all but the large ones unless named, and write the page; rows of those that are not run stay as they are."""
    known: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in names or USUAL:
        print(f"running {name}", file=sys.stderr, flush=True)
        script, *arguments = BENCHMARKS[name]
        done = subprocess.run(
            [sys.executable, HERE / script, *arguments], stdout=subprocess.PIPE, text=True, check=True
        )
        known[name] = {
            "measured": f"{dt.datetime.now(tz=dt.UTC).date().isoformat()}, {cpu_model()}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}, Linux {platform.release().split('-')[0]}, load average afterwards {os.getloadavg()[0]:.1f}",
            "rows": [row(figure) for figure in json.loads(done.stdout.splitlines()[-1])],
        }
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    text = page({name: known[name] for name in BENCHMARKS if name in known})
    OUT.write_text(text)
    print(text)


def page(known: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        *(
            f"## {name.capitalize()}\n\n{one['measured']}\n\n| what | median | spread | rounds | aim |\n|---|---|---|---|---|\n"
            + "\n".join(one["rows"])
            for name, one in known.items()
        ),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()

"""The table of what ran in which mode: the last section of docs/benchmarks/engine.md, from reports of ``make e2e-vllm-all``.

    .venv/bin/python -m eldr_bench.modes out/e2e-vllm.xml

puts in the row of a run, in the place of an earlier one of the same mode, release and tests.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import click

from eldr_bench.machine import ROOT, revision

PAGE = ROOT / "docs" / "benchmarks" / "engine.md"
HEADING = "## What ran in each mode"
HEAD = [
    HEADING,
    "",
    "Tests of real engines (`make e2e-vllm-all MODE= VLLM= FAMILY= ONLY=`). Each engine reports from inside which model runner and scheduler it has,",
    "and a test fails where these are others than the mode says. Tests that ask for a mode of their own run in that one. *Inside* are tests in the",
    "environment of an engine, without one (`make e2e-vllm-inside VLLM=`). With GPT-OSS and V2 no request is preempted: a step of so many requests takes ten",
    "seconds there, as V2's kernels are interpreted.",
    "",
    "| mode | vLLM | tests | passed | skipped | failed | minutes | run |",
    "|---|---|---|---|---|---|---|---|",
]


class Run(NamedTuple):
    """A row; what it is a row of stands in the first three cells."""

    mode: str
    release: str
    tests: str
    passed: int
    skipped: int
    failed: int
    minutes: str
    when: str

    def line(self) -> str:
        """Return it as a line of the table."""
        return f"| {' | '.join(map(str, self))} |"


def read(report: Path, when: str) -> Run:
    """Return the run of a JUnit report, whose suite is named ``MODE, RELEASE, TESTS``."""
    suite = next(ET.parse(report).iter("testsuite"))
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    if total == skipped:
        raise click.UsageError(f"{report}: no test ran, so that there is nothing to tell")
    mode, release, tests = suite.attrib["name"].split(", ", 2)
    minutes = f"{float(suite.attrib['time']) / 60:.0f}"
    return Run(mode, release, tests, total - skipped - failed, skipped, failed, minutes, when)


def section(page: str) -> str:
    """Return the section of a page, empty if it has none."""
    return page[page.index(HEADING) :] if HEADING in page else ""


def with_run(page: str, run: Run) -> str:
    """Return a page with the row of a run."""
    # by what they are, not by their place: the words above the table may have changed
    old = [line for line in section(page).splitlines() if line.startswith("|") and line not in HEAD]
    key = run.line().split(" | ")[:3]
    lines = [line for line in old if line.split(" | ")[:3] != key] + [run.line()]
    return page.removesuffix(section(page)) + "\n".join([*HEAD, *sorted(lines), ""])


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(report: Path) -> None:
    """Put the row of a run into docs/benchmarks/engine.md."""
    run = read(report, f"{datetime.now().astimezone().date()}, {revision()}")
    PAGE.write_text(with_run(PAGE.read_text(), run))
    click.echo(run.line())


if __name__ == "__main__":
    main()

"""Published numbers on prefix caches and first tokens."""

from __future__ import annotations

from collections.abc import Iterator

from eldr_lab.evidence import published
from eldr_lab.evidence.cells import BAND, JSQ
from eldr_lab.evidence.names import place
from eldr_lab.evidence.results import FIRST_P50, P50, P99, Results
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict

_ASSUMED = "nothing was fitted: the stage follows from the step-time model; the paper's first token leaves its prefill engine, ours waits for a decode step"
_OWN_LOAD = "simulated at 60 requests/s; the paper does not give its load"


def further(results: Results) -> Iterator[Row]:
    """Yield the rows."""
    yield from _prefix(results)
    yield from _first(results)


def _prefix(results: Results) -> Iterator[Row]:
    # the paper's engines keep the counts of what is cached, and it gives one number for both
    cells = [cell for cell in results.cells("prefix", "task") if cell.counted]
    for measure, number, name in zip((P50, P99), published.PREFIX, ("P50", "P99"), strict=True):
        yield row(
            f"{place(cells[0].geometry, 'task')}, prefix caches off and on (half of every prompt): band, {name} against JSQ, mean",
            results.change(cells, BAND, JSQ, measure), number, number, f"{number:+.1f} (paper, off and on)",
            dict.fromkeys(Verdict, _OWN_LOAD) | {Verdict.REPRODUCED: ""},
        )  # fmt: skip


def _first(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        if (geometry, workload) != published.FIRST_WHERE:
            continue
        for cell in results.cells("main", workload, geometry):
            if cell.rate == published.FIRST_RATE:
                yield row(
                    f"{place(geometry, workload)}, {cell.rate:.0f} requests/s: P50 of the time to first token, round robin, ms",
                    results.level(cell, "RoundRobin", FIRST_P50, 1e3),
                    published.FIRST, published.FIRST, f"{published.FIRST:.0f} (paper)", dict.fromkeys(Verdict, _ASSUMED),
                    sign="",
                )  # fmt: skip

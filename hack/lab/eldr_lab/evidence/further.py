"""Rows of the main table on prefix caches, first tokens, engines of several ranks, and throughput."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from eldr_lab.evidence import published
from eldr_lab.evidence.capacity import OBJECTIVE_RATE, gain, measured_gain
from eldr_lab.evidence.cells import BAND, JSQ, ROLLING
from eldr_lab.evidence.names import place, policy
from eldr_lab.evidence.results import FIRST_P50, P50, P99, Results
from eldr_lab.evidence.rows import Row, row
from eldr_lab.evidence.verdicts import Verdict

_ASSUMED = "nothing was fitted: the stage follows from the step-time law; the paper's first token leaves its prefill engine, ours waits for a decode step"
_OWN_LOAD = (
    "at 60 requests/s, where the artifact's band gains most as well; the paper's load is not known to us"
)
_SCALED = "law from Qwen3-30B's by bytes, without all-reduces, and preferences of Qwen3-30B; the paper's load is not known to us"
_STEEP = "where times hardly grow with the rate a small gain in time is a large one in rate; both GPT-OSS's preferences and the law are ours"


def further(results: Results) -> Iterator[Row]:
    """Yield the rows."""
    yield from _prefix(results)
    yield from _first(results)
    yield from _ranks(results)
    yield from _throughput(results)


def _prefix(results: Results) -> Iterator[Row]:
    for cell in results.cells("prefix", "task"):
        if not cell.counted:
            continue  # the paper's engines keep the counts of what is cached
        state = f"{100 * cell.cached:.0f} % of every prompt cached" if cell.cached else "nothing cached"
        for measure, number, name in zip((P50, P99), published.PREFIX, ("P50", "P99"), strict=True):
            yield row(
                f"{place(cell.geometry, cell.workload)}, prefix cache, {state}: band, {name} against JSQ",
                results.change([cell], BAND, JSQ, measure), number, number, f"{number:+.1f} (paper, on and off)",
                {Verdict.STRONGER: _OWN_LOAD},
            )  # fmt: skip


def _first(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        if geometry != published.FIRST_MODEL:
            continue
        for cell in results.cells("main", workload, geometry):
            if cell.rate == published.FIRST_RATE:
                yield row(
                    f"{place(geometry, workload)}, {cell.rate:.0f} requests/s: P50 of the time to first token, round robin, ms",
                    results.level(cell, "RoundRobin", FIRST_P50, 1e3),
                    published.FIRST, published.FIRST, f"{published.FIRST:.0f} (paper)", dict.fromkeys(Verdict, _ASSUMED),
                    sign="",
                )  # fmt: skip


def _ranks(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("ranks"):
        cells = results.cells("ranks", workload, geometry)
        quantiles = zip((P50, P99), published.RANKS, ("P50", "P99"), strict=True)
        for (measure, known, name), one in itertools.product(quantiles, (BAND, ROLLING)):
            yield row(
                f"{place(geometry, workload)}, 8 engines of 4 ranks: {policy(one)}, {name} against JSQ, mean over the rates",
                results.change(cells, one, JSQ, measure), known.low, known.high, str(known),
                dict.fromkeys(Verdict, _SCALED) | {Verdict.REPRODUCED: ""},
            )  # fmt: skip


def _throughput(results: Results) -> Iterator[Row]:
    for geometry, workload in results.kinds("main"):
        for quantile, measure in enumerate((P50, P99)):
            there = measured_gain(geometry, workload, "ELDR", quantile)
            if there is None:
                continue
            ours = gain(results, geometry, workload, ROLLING, measure, beyond=False)
            bound = "at least " if there.at_least else ""
            yield row(
                f"{place(geometry, workload)}: {policy(ROLLING)}, requests/s within JSQ's P{(50, 99)[quantile]} at {OBJECTIVE_RATE:.0f}"
                + (", at least" if ours.at_least else ""),
                ours.more, there.more.mean, there.more.mean, f"{bound}{there.more} (artifact)",
                dict.fromkeys(Verdict, _STEEP) | {Verdict.REPRODUCED: ""},
            )  # fmt: skip

"""What should hold in the simulation, and whether it does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eldr_lab.evidence.cells import (
    BAND,
    BEST_RANGES,
    EVEN,
    JSQ,
    MARGINAL,
    PRIOR,
    ROLLING,
    TOP1,
    VANILLA,
    Cell,
)
from eldr_lab.evidence.intervals import Interval, interval
from eldr_lab.evidence.names import place, policy
from eldr_lab.evidence.results import BEST, FIRST_P50, MEAN, P50, P99, STEP_EXPERTS, Results
from eldr_lab.evidence.verdicts import Holds, at_most, within

LEVEL = 1.5
"""Balancers are level within so many percent of P50."""
ACTIVE = (-26.0, -18.0)
FLAT = 1.0
SAME = 1.0
"""Points within which two settings agree."""
NOT_WORSE = 0.5
"""Percent that count as the same."""


class Claim(NamedTuple):
    """Something that should hold, what was found, and whether it does."""

    what: str
    found: str
    holds: Holds


def claims(results: Results) -> list[Claim]:
    """Return every claim on the order and the size of effects."""
    return [
        *_balancers(results),
        *_order(results),
        *_sizes(results),
        *_hurts(results),
        *_pools(results),
        *_flat(results),
        *_moved(results),
        *_first_tokens(results),
        *_prefix(results),
        *_steps(results),
    ]


def _balancers(results: Results) -> Iterator[Claim]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        others = [results.change(cells, name, JSQ, P50) for name in EVEN if name != JSQ]
        widest = max(others, key=lambda one: abs(one.mean))
        yield Claim(
            f"{place(geometry, workload)}: round robin, JSQ and power of two are level in P50 (within {LEVEL} %)",
            f"at most {widest}", within(widest, -LEVEL, LEVEL),
        )  # fmt: skip


def _order(results: Results) -> Iterator[Claim]:
    for geometry, workload in results.kinds("main"):
        if workload != "task":
            continue  # a label is all that Domain knows, and languages cross topics
        cells = results.cells("main", workload, geometry)
        domain = results.change(cells, "Domain", BEST, P50)
        yield Claim(
            f"{place(geometry, workload)}: Domain is faster than the best balancer in P50",
            str(domain),
            at_most(domain, 0.0),
        )
        band = results.change(cells, BAND, "Domain", P50)
        yield Claim(
            f"{place(geometry, workload)}: the band is faster than Domain in P50",
            str(band),
            at_most(band, 0.0),
        )


def _sizes(results: Results) -> Iterator[Claim]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        low, high = BEST_RANGES[workload]
        band = results.change(cells, BAND, BEST, P50)
        yield Claim(
            f"{place(geometry, workload)}: band, P50 against the best balancer in {low:+.0f} .. {high:+.0f} %",
            str(band), within(band, low, high),
        )  # fmt: skip
    geometry = results.kinds("main")[0][0]
    active = results.change(results.cells("main", "task", geometry), BAND, "RoundRobin", STEP_EXPERTS)
    low, high = ACTIVE
    yield Claim(
        f"{place(geometry, 'task')}: active experts of the band in {low:+.0f} .. {high:+.0f} % of round robin's",
        str(active), within(active, low, high),
    )  # fmt: skip


def _hurts(results: Results) -> Iterator[Claim]:
    for name in (VANILLA, TOP1):
        for geometry, workload in results.kinds("main"):
            cells = results.cells("main", workload, geometry)
            tail = results.change(cells, name, BAND, P99)
            yield Claim(
                f"{place(geometry, workload)}: {policy(name)} has a longer P99 than the band",
                str(tail), at_most(Interval(-tail.mean, tail.half), 0.0),
            )  # fmt: skip


def _pools(results: Results) -> Iterator[Claim]:
    rates = sorted({cell.rate for cell in results.cells("pool")})
    for rate in rates:
        small, *_, large = sorted(
            (cell for cell in results.cells("pool") if cell.rate == rate), key=lambda cell: cell.engines
        )
        more = _moved_by(results, BAND, small, large, P50)
        yield Claim(
            f"{place(large.geometry, large.workload)}, {rate:.0f} requests/s: the band gains more in P50 on {large.engines} engines than on {small.engines} (points)",
            str(more), at_most(more, 0.0),
        )  # fmt: skip


def _flat(results: Results) -> Iterator[Claim]:
    for cell in results.cells("flat"):
        for name in (MARGINAL, PRIOR):
            for measure, text in ((P50, "P50"), (P99, "P99")):
                change = results.change([cell], name, JSQ, measure)
                yield Claim(
                    f"experts cost nothing, {cell.workload}: {policy(name)} within {FLAT:.0f} % of JSQ in {text}",
                    str(change), within(change, -FLAT, FLAT),
                )  # fmt: skip


def _moved(results: Results) -> Iterator[Claim]:
    for experiment, text in (("drift", "after a drift"), ("uneven", "slow and fast engines")):
        for cell in results.cells(experiment):
            rivals = [rival for rival in (BAND, ROLLING) if rival in cell.policies]
            for rival, name in itertools.product(rivals, (MARGINAL, PRIOR)):
                for measure, title in ((MEAN, "mean"), (P99, "P99")):
                    change = results.change([cell], name, rival, measure)
                    yield Claim(
                        f"{text}, {cell.workload}, {cell.rate:.0f} requests/s: {policy(name)} better than the {policy(rival)} in {title}",
                        str(change), at_most(change, 0.0),
                    )  # fmt: skip


def _first_tokens(results: Results) -> Iterator[Claim]:
    for geometry, workload in results.kinds("main"):
        cells = results.cells("main", workload, geometry)
        first = results.change(cells, PRIOR, JSQ, FIRST_P50)
        yield Claim(
            f"{place(geometry, workload)}: {policy(PRIOR)} has no longer time to first token than JSQ in P50",
            str(first),
            at_most(first, 0.0),
        )


def _prefix(results: Results) -> Iterator[Claim]:
    for workload in dict.fromkeys(cell.workload for cell in results.cells("prefix")):
        cells = results.cells("prefix", workload)
        cold, warm = (
            next(cell for cell in cells if cell.counted and bool(cell.cached) is some)
            for some in (False, True)
        )
        for name in (BAND, PRIOR):
            moved = _moved_by(results, name, cold, warm, P50)
            yield Claim(
                f"prefix cache, {workload}: with the counts of cached tokens known, {policy(name)} gains the same in P50 (points, within {SAME})",
                str(moved), within(moved, -SAME, SAME),
            )  # fmt: skip
        quicker = results.change_between(warm, cold, JSQ, FIRST_P50)
        yield Claim(
            f"prefix cache, {workload}: half of every prompt cached shortens the time to first token (P50, JSQ)",
            str(quicker),
            at_most(quicker, 0.0),
        )


def _steps(results: Results) -> Iterator[Claim]:
    for workload in dict.fromkeys(cell.workload for cell in results.cells("steps")):
        expected, sampled = results.cells("steps", workload)
        for name in (BAND, MARGINAL, PRIOR):
            for measure, text in ((P50, "P50"), (P99, "P99")):
                moved = _moved_by(results, name, expected, sampled, measure)
                yield Claim(
                    f"single steps, {workload}: {policy(name)} gains in {text} what it does with expected unions (points, within {SAME})",
                    str(moved), within(moved, -SAME, SAME),
                )  # fmt: skip


def _moved_by(results: Results, name: str, cell: Cell, other: Cell, measure: str) -> Interval:
    """Return how many points a policy's change against JSQ differs between two cells, seed by seed."""
    changes = [
        [
            100 * (a / b - 1)
            for a, b in zip(
                results.values(one, name, measure), results.values(one, JSQ, measure), strict=True
            )
        ]
        for one in (cell, other)
    ]
    return interval([b - a for a, b in zip(*changes, strict=True)])


def duels(results: Results, name: str) -> list[tuple[Cell, Interval, Holds, Interval, Holds]]:
    """Return a policy against the band, cell by cell: P50 not worse, P99 better."""
    found = []
    for cell in results.cells("main"):
        middle, tail = (results.change([cell], name, BAND, measure) for measure in (P50, P99))
        found.append((cell, middle, at_most(middle, NOT_WORSE), tail, at_most(tail, 0.0)))
    return found


def count(holds: Sequence[Holds]) -> str:
    """Return how many of them hold, in words."""
    yes, no = holds.count(Holds.YES), holds.count(Holds.NO)
    text = f"holds in {yes} of {len(holds)} cells"
    if no:
        text += f", not in {no}"
    if len(holds) - yes - no:
        text += f", undecided in {len(holds) - yes - no}"
    return text

"""The default policy, by a rule, from the numbers."""

from __future__ import annotations

from typing import NamedTuple

from eldr_lab.evidence import errors
from eldr_lab.evidence.cells import DUELS, JSQ, LOCALITY, SLOWER, Cell
from eldr_lab.evidence.intervals import Interval
from eldr_lab.evidence.names import FIELDS, place
from eldr_lab.evidence.results import MEAN, P50, P99, Results

WORST_TAIL = 1.0
"""Percent of P99 above JSQ's that a default may cost in some cell."""
RULE = f"The rule: of the policies whose P99 is nowhere more than {WORST_TAIL:.0f} % above JSQ's, the one with the least mean time per token."


class Standing(NamedTuple):
    """A policy against JSQ: P50, mean and P99 over every cell, and the cell with the worst P99."""

    policy: str
    median: Interval
    mean: Interval
    tail: Interval
    worst: Interval
    where: Cell


def cells(results: Results) -> list[Cell]:
    """Return the cells that the rule looks at: every policy by locality was run in each."""
    return [cell for name in DUELS for cell in results.cells(name)]


def standings(results: Results, known: list[Cell]) -> list[Standing]:
    """Return how every policy by locality stands over some cells."""
    found = []
    for name in LOCALITY:
        tails = {cell: results.change([cell], name, JSQ, P99) for cell in known}
        where = max(tails, key=lambda cell: tails[cell].mean)
        median, mean, tail = (results.change(known, name, JSQ, measure) for measure in (P50, MEAN, P99))
        found.append(Standing(name, median, mean, tail, tails[where], where))
    return found


def recommended(found: list[Standing]) -> Standing:
    """Return the policy with the least mean of those whose P99 is nowhere more than a percent above JSQ's.

    Where every policy has such a cell: the one whose worst cell is the least bad.
    """
    safe = [one for one in found if one.worst.mean <= WORST_TAIL]
    if safe:
        return min(safe, key=lambda one: one.mean.mean)
    return min(found, key=lambda one: one.worst.mean)


def describe(cell: Cell) -> str:
    """Return a cell in words."""
    kinds = {
        "drift": ", after a drift",
        "uneven": ", slow and fast engines",
        "flat": ", experts cost nothing",
    }
    return (
        f"{place(cell.geometry, cell.workload)}, {cell.rate:.0f} requests/s{kinds.get(cell.experiment, '')}"
    )


def sentence(results: Results) -> str:
    """Return the recommendation."""
    known = cells(results)
    found = standings(results, known)
    best = recommended(found)
    even, uneven = (
        [cell for cell in known if (cell.experiment == "uneven") is some] for some in (False, True)
    )
    changes = [
        [results.change(some, best.policy, JSQ, measure) for measure in (P50, MEAN, P99)]
        for some in (even, uneven)
        if some
    ]
    apart = (
        f" In {len(uneven)} cells where every second engine is {SLOWER} times slower, most of it is speed: the mean changes by {changes[-1][1]} %, P99 by {changes[-1][2]} % "
        f"and P50 by {changes[-1][0]} %."
        if uneven
        else ""
    )
    is_sure = abs(best.worst.mean) > errors.error(results, P99).ours
    unsure = "" if is_sure else ", which is less than the band's error"
    unsafe = (
        "" if best.worst.mean <= WORST_TAIL else "No policy keeps the bound; this one misses it by least. "
    )
    return (
        f"**Default: {FIELDS[best.policy]}**. Against JSQ it changes P50 by {changes[0][0]} %, the mean by {changes[0][1]} % and P99 by {changes[0][2]} %, over "
        f"{len(even)} cells of equal engines, drifting ones included. No error of the model is known for it; the band's is {errors.short(results)} points of P50 / P99.{apart} {unsafe}Its worst P99 is "
        f"{best.worst} % ({describe(best.where)}){unsure}."
    )

"""One run: a workload, a router, a pool."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eldr.simulate.engine import Engine, Member
from eldr.simulate.measures import Measures, Tally
from eldr.simulate.population import Ints
from eldr.simulate.routing import Placement, Router
from eldr.simulate.workload import Times, Workload


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What happened.

    Attributes
    ----------
    engine : ndarray of int, shape (n,)
        Engine of each request of the workload.
    first, end : ndarray of float, shape (n,)
        When the first and last token of each came, seconds; NaN after the last measured one ended.
    """

    measures: Measures
    engine: Ints
    first: Times
    end: Times


def serve(engines: Sequence[Engine], router: Router, workload: Workload, tally: Tally) -> Run:
    """Let a router send a workload to engines until every measured request has ended."""
    n = len(workload)
    placements: dict[int, Placement] = {}
    in_flight, engine = [0] * len(engines), np.full(n, -1, dtype=np.int64)
    first, end = np.full(n, math.nan), np.full(n, math.nan)
    # (time, engine, number of the plan): a plan that was changed meanwhile has another number
    due: list[tuple[float, int, int]] = []
    plans = [0] * len(engines)
    records, tokens = workload.record.tolist(), workload.tokens.tolist()
    ready, measured = [*workload.ready.tolist(), math.inf], workload.measured.tolist()
    number, left = 0, sum(measured)

    def plan(at: int, when: float | None) -> None:
        if when is not None:
            plans[at] += 1
            heapq.heappush(due, (when, at, plans[at]))

    while left:
        if ready[number] <= (due[0][0] if due else math.inf):
            now = ready[number]
            placement = placements[number] = router.place(records[number], now)
            at = engine[number] = placement.engine
            in_flight[at] += 1
            if measured[number]:
                tally.placed(in_flight, waits=not engines[at].has_room)
            plan(at, engines[at].add(Member(number, records[number], tokens[number]), now))
            number += 1
            continue
        now, at, which = heapq.heappop(due)
        if which != plans[at]:
            continue
        ended, begun, ran = engines[at].advance(now)
        if ran is not None:
            tally.ran(ran)
        for member in ended:
            end[member.number] = now
            in_flight[at] -= 1
            router.ended(placements.pop(member.number), now)
            left -= measured[member.number]
        for member in begun:
            first[member.number] = engines[at].first_end
        plan(at, engines[at].due)
    return Run(tally.measures(workload, first, end), engine, first, end)

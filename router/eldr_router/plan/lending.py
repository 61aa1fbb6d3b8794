"""Who gives how much of its room on an engine to whom. Pure.

Every router decides for itself, by what it last heard; as all follow one rule, together they give about what is lacking.
A wrong guess costs nothing but a later correction: what keeps the limit is how grants are counted, not how they are
chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def grants(own: str, free: Mapping[str, int], demand: Mapping[str, float]) -> dict[str, int]:
    """Return what router ``own`` gives to each other router.

    Free room should be spread as the demand is. A router lacks room when it has less than half of its part: so demand
    that merely fluctuates moves nothing to and fro. Nobody gives his last place: requests may come to him as well.

    Parameters
    ----------
    free : mapping
        Room on the engine by router, below zero for one that holds more than its rights.
    demand : mapping
        Weight of each router, above zero.
    """
    total = sum(max(0, room) for room in free.values())
    weight = sum(demand[router] for router in free)
    part = {router: total * demand[router] / weight for router in free}
    lack = {
        router: math.floor(part[router]) - free[router]
        for router in free
        if math.floor(part[router]) >= 1 and free[router] < part[router] / 2
    }
    spare = {router: free[router] - max(1, math.floor(part[router])) for router in free}  # never the last one
    if spare[own] <= 0 or not lack:
        return {}
    offered = sum(room for room in spare.values() if room > 0)
    wanted = sum(lack.values())
    given: dict[str, int] = {}
    left = spare[own]
    first = own == max(spare, key=lambda router: (spare[router], router))
    for router in sorted(lack, key=lambda router: (-lack[router], router)):
        exact = min(lack[router], spare[own] * lack[router] / max(offered, wanted))
        number = min(left, math.ceil(exact) if first else math.floor(exact))
        if number > 0:
            given[router] = number
            left -= number
    return given


def given_up(own: str, free: Mapping[str, int], waiting: int) -> dict[str, int]:
    """Return what router ``own`` gives that takes no new requests: all but the places of those that wait, evenly.

    Parameters
    ----------
    free : mapping
        Room on the engine by router.
    waiting : int
        Its sequences that have no engine yet.
    """
    others = sorted(router for router in free if router != own)
    spare = max(0, free[own] - waiting)
    if not others or not spare:
        return {}
    each, rest = divmod(spare, len(others))
    return {router: each + (at < rest) for at, router in enumerate(others) if each + (at < rest)}

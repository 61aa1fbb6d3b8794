"""METRO's choice of replicas, one rank for each active expert. Plain Python: engines on CPUs, studies, and the reference of the Triton form.

The rules are those of docs/development/metro.md, to the letter: ranks that chose otherwise would compute an expert twice or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence


def place(
    active: Sequence[bool], holders: Sequence[Sequence[int]], ranks: int
) -> tuple[list[int], list[int], list[int]]:
    """Give every active expert to its least loaded holder: those with few holders first, then by number; equal holders by rank.

    Parameters
    ----------
    active : sequence of bool
        Experts that any token of the step uses, on any rank.
    holders : sequence of sequence of int
        Ranks that hold each expert, in order.

    Returns
    -------
    tuple of list of int
        How many experts each rank computes; the rank of every expert, the lowest holder of an inactive one, -1 without a holder; the
        active experts that several ranks hold.
    """
    rank_of = [held[0] if held else -1 for held in holders]
    load = [0] * ranks
    for is_active, held in zip(active, holders, strict=True):
        if is_active and len(held) == 1:
            load[held[0]] += 1
    movable = [e for e, held in enumerate(holders) if active[e] and len(held) > 1]
    for e in sorted(movable, key=lambda e: (len(holders[e]), e)):
        rank_of[e] = min(holders[e], key=lambda rank: (load[rank], rank))
        load[rank_of[e]] += 1
    return load, rank_of, movable


def choose(
    active: Sequence[bool], holders: Sequence[Sequence[int]], ranks: int
) -> tuple[list[int], list[int]]:
    """Return loads and ranks as :func:`place` does, so that the fullest rank has as few experts as can be.

    While the fullest rank is fuller than the mean and than what any rank must compute, it looks for the nearest rank that is at least two experts below it, and moves one
    expert along each edge of the way there. Where it reaches none, the choice is optimal.
    """
    load, rank_of, movable = place(active, holders, ranks)
    fixed = [load[rank] - sum(rank_of[e] == rank for e in movable) for rank in range(ranks)]
    least = max(*fixed, -(-sum(load) // ranks))
    while (top := max(load)) > least:
        source = goal = load.index(top)
        distance, level = {source: 0}, {source}
        while level and load[goal] > top - 2:
            level = {r for e in movable if rank_of[e] in level for r in holders[e]} - distance.keys()
            distance |= dict.fromkeys(level, max(distance.values()) + 1)
            goal = min(level, key=lambda rank: (load[rank], rank), default=source)
        if goal == source:
            break
        load[source] -= 1
        load[goal] += 1
        while goal != source:
            before = distance[goal] - 1
            able = [e for e in movable if distance.get(rank_of[e]) == before and goal in holders[e]]
            e = min(able, key=lambda e: (rank_of[e], e))
            goal, rank_of[e] = rank_of[e], goal
    return load, rank_of

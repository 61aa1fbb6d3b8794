"""How many sequences engines have over all routers, of whom some may have fallen silent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

STALE_SECONDS = 2.0
"""What another router said longer ago no longer tells engines apart: neither its counts nor its requests' experts."""

Counts = Mapping[str, int]


def totals(
    own: Sequence[int],
    names: Sequence[str],
    fresh: Sequence[Counts],
    silent: Sequence[Counts],
    pool: Collection[str],
) -> list[int]:
    """Return the sequences in flight on some engines, over all routers.

    Silent routers' sequences count as their mean over the pool on every engine: they may well be there, but where is not
    known any longer. Left where they were heard last, they would send all requests to the other engines, for ever.

    Parameters
    ----------
    own : sequence of int
        This router's, by engine.
    fresh, silent : sequence of mapping of str to int
        Those of each other router by engine; silent ones were heard more than :data:`STALE_SECONDS` ago.
    pool : collection of str
        All engines of the role.

    Examples
    --------
    >>> totals([1, 0], ["a", "b"], [{"b": 2}], [{"a": 40}], ["a", "b"])
    [21, 22]
    """
    mean = 0
    if silent and pool:
        mean = round(sum(counts.get(name, 0) for counts in silent for name in pool) / len(pool))
    return [
        mine + mean + sum(counts.get(name, 0) for counts in fresh)
        for mine, name in zip(own, names, strict=True)
    ]

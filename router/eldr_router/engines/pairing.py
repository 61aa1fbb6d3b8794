"""Which engines may exchange KV, as during a rollout. Pure.

The operator labels pods with a key: a digest of what two engines must have in common, such as the release and the model's data
type (:mod:`eldr_operator.workloads.kv`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Load(NamedTuple):
    """An engine's key, empty where none is named, and its sequences in flight."""

    key: str
    in_flight: int


class Group(NamedTuple):
    """Engines with one key.

    Without a prefill engine, requests go whole to its decode engines.
    """

    key: str
    has_prefill: bool


def alike(one: str, other: str) -> bool:
    """Return whether engines with these keys may exchange KV.

    An engine without a key may with any other.
    """
    return one == other or not one or not other


def lightest(prefill: Sequence[Load], decode: Sequence[Load], turn: int) -> Group | None:
    """Return the group whose least loaded engines have the fewest sequences.

    Each decode engine belongs to a group, so that none stands idle because its prefill engines have not started yet. A decode
    engine that prefills itself counts as loaded as the least loaded prefill engine.

    Parameters
    ----------
    prefill : sequence of Load
    decode : sequence of Load
    turn : int
        Rotates ties.
    """
    keys = sorted({load.key for load in decode})
    anywhere = min((load.in_flight for load in prefill), default=0)
    groups: list[tuple[int, Group]] = []
    for key in keys[turn % len(keys) :] + keys[: turn % len(keys)] if keys else ():
        sources = [load.in_flight for load in prefill if alike(load.key, key)]
        least = min(load.in_flight for load in decode if load.key == key)
        groups.append((least + min(sources, default=anywhere), Group(key, bool(sources))))
    # of equals first one that splits: there a decode engine is not kept from its steps
    return min(groups, key=lambda each: (each[0], not each[1].has_prefill), default=(0, None))[1]

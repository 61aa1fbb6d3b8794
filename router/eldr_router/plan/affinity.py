"""Prefill choice: the same prompt prefix goes to the same engine, unless that one is loaded. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

_MASK = (1 << 64) - 1
BOUND = 1.25


def seed(name: str) -> int:
    """Return an endpoint's fixed 64-bit seed."""
    return _hash(name.encode())


def _score(key: int, endpoint: int) -> int:
    # splitmix64's finaliser: hashing once per request and mixing per endpoint is ten times cheaper than hashing both
    x = (key ^ endpoint) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 31)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 29)


def choose(prefix: bytes, seeds: Sequence[int], in_flight: Sequence[int], turn: int) -> int:
    """Choose a prefill endpoint by rendezvous hashing with bounded load.

    Parameters
    ----------
    prefix : bytes
        First bytes of the prompt's text; empty means no affinity.
    seeds : sequence of int
        One per endpoint, from :func:`seed`.
    in_flight : sequence of int
        Requests in flight per endpoint.
    turn : int
        Rotates ties where there is no affinity.

    Returns
    -------
    int
        The first endpoint in the prefix's own order that stays within 1.25 times the mean load.
    """
    count = len(seeds)
    if count == 1:
        return 0
    if not prefix:
        return min(range(count), key=lambda i: (in_flight[i], (i - turn) % count))
    key = _hash(prefix)
    limit = math.ceil(BOUND * (sum(in_flight) + 1) / count)  # the least loaded one always stays below it
    order = sorted(range(count), key=lambda i: _score(key, seeds[i]), reverse=True)
    return next(i for i in order if in_flight[i] < limit)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")

"""Activation records as readers see them: pages by cursor, see :data:`eldr.contract.PATH_ACTIVATIONS`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from eldr import contract
from eldr.engine.decode.ring import RingReader

CURSOR = r"^[0-9]{1,16}([.][0-9]{1,16})*$"
"""How far the ring of each rank was read. Any API server of an engine can go on from there."""
_BETWEEN = "."


def page(
    rings: Sequence[RingReader],
    *,
    after: str,
    limit: int,
    prefix: str = "",
    boot: str = "",
    rate: float = 1.0,
) -> dict[str, Any]:
    """Return one page.

    Parameters
    ----------
    rings : sequence of RingReader
        One of each rank that has requests of its own.
    after : str
        A :data:`CURSOR`.
    limit : int
        Records to return at most.
    prefix : str
        Only requests whose base id begins so.
    boot : str
        The boot the cursor belongs to; with another one, reading begins at the oldest record.
    rate : float
        Only requests that are sampled at this rate.
    """
    now = boot_of(rings)
    cursor, ends = [int(one) for one in after.split(_BETWEEN)], [ring.written for ring in rings]
    known = len(cursor) == len(rings) and all(at <= end for at, end in zip(cursor, ends, strict=True))
    if not known or (boot and boot != now):
        cursor = [0] * len(rings)  # one of the engine before this one
    lost, records = 0, list[dict[str, Any]]()
    for index, (ring, end) in enumerate(zip(rings, ends, strict=True)):
        start = max(cursor[index], ring.oldest)
        lost, cursor[index] = lost + start - cursor[index], start
        while cursor[index] < end and len(records) < limit:
            raw = ring.get(cursor[index])
            cursor[index] += 1
            if raw is None:
                lost += 1
                continue
            record = json.loads(raw)
            name = contract.base_id(record["request_id"])
            if name.startswith(prefix) and contract.is_sampled(name, rate):
                records.append(record | {"request_id": name})
    return {
        "v": contract.COUNTS_VERSION,
        "boot": now,
        "next": cursor[0] if len(cursor) == 1 else _BETWEEN.join(map(str, cursor)),
        "lost": lost,
        "records": records,
    }


def boot_of(rings: Sequence[RingReader]) -> str:
    """Return what is new where any of the ranks is."""
    if len(rings) == 1:
        return rings[0].boot
    return hashlib.sha256(_BETWEEN.join(ring.boot for ring in rings).encode()).hexdigest()[:32]

"""Activation records as readers see them: pages by cursor, see :data:`eldr.contract.PATH_ACTIVATIONS`."""

from __future__ import annotations

import json
from typing import Any

from eldr import contract
from eldr.engine.decode.ring import RingReader
from eldr.engine.decode.rings import MergedRings


def page(
    ring: RingReader | MergedRings,
    *,
    after: int,
    limit: int,
    prefix: str = "",
    boot: str = "",
    rate: float = 1.0,
) -> dict[str, Any]:
    """Return one page.

    Parameters
    ----------
    limit : int
        Records to return at most.
    prefix : str
        Only requests whose base id begins so.
    boot : str
        The boot the cursor belongs to; with another one, reading begins at the oldest record.
    rate : float
        Only requests that are sampled at this rate.
    """
    end = ring.written
    if (boot and boot != ring.boot) or after > end:
        after = 0  # a cursor of the engine before this one
    start = max(after, ring.oldest)
    lost, cursor = max(0, start - after), start
    records: list[dict[str, Any]] = []
    while cursor < end and len(records) < limit:
        raw = ring.get(cursor)
        cursor += 1
        if raw is None:
            lost += 1
            continue
        record = json.loads(raw)
        name = contract.base_id(record["request_id"])
        if name.startswith(prefix) and contract.is_sampled(name, rate):
            records.append(record | {"request_id": name})
    return {
        "v": contract.COUNTS_VERSION,
        "boot": ring.boot,
        "next": cursor,
        "lost": lost,
        "records": records,
    }

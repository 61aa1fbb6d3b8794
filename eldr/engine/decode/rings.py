"""The rings of an engine's data-parallel ranks, read as one."""

from __future__ import annotations

import threading
import uuid
from collections import deque

from eldr.engine.decode.ring import RingReader


class MergedRings:
    """The rings of several ranks as one: records are numbered in the order in which they are seen.

    Attributes
    ----------
    boot : str
        New for every reader: another one may see records in another order.
    """

    def __init__(self, rings: list[RingReader]) -> None:
        self.boot = uuid.uuid4().hex
        self._rings = rings
        self._seen = [0] * len(rings)
        self._written = 0
        self._turn = threading.Lock()  # requests are answered by several threads
        self._where: deque[tuple[int, int]] = deque(maxlen=sum(ring.slots for ring in rings))

    @property
    def written(self) -> int:
        """Records ever seen, and overwritten before they could be."""
        with self._turn:
            for index, ring in enumerate(self._rings):
                end = ring.written
                self._where.extend((index, number) for number in range(self._seen[index], end))
                self._written += end - self._seen[index]
                self._seen[index] = end
            return self._written

    @property
    def oldest(self) -> int:
        """Number of the oldest record that may still be there."""
        with self._turn:
            return self._written - len(self._where)

    def get(self, number: int) -> bytes | None:
        """Return a record, or None if it was overwritten meanwhile."""
        with self._turn:
            place = number - (self._written - len(self._where))
            if not 0 <= place < len(self._where):
                return None
            ring, own = self._where[place]
        return self._rings[ring].get(own)

"""KV blocks of a simulated engine, and results of prefills."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eldr.sim.text import stale


class BlockPool:
    """Counts free KV blocks."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.free = n_blocks

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that hold so many tokens."""
        return math.ceil(tokens / self.block_size)

    def take(self, n: int) -> bool:
        """Take ``n`` blocks, or none and return False."""
        if n > self.free:
            return False
        self.free -= n
        return True

    def give(self, n: int) -> None:
        """Return blocks to the pool."""
        self.free += n
        assert self.free <= self.n_blocks, "blocks freed twice"  # noqa: S101

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1."""
        return 1.0 - self.free / self.n_blocks


@dataclass(frozen=True, slots=True)
class Held:
    """A finished prefill that waits for its decode engine."""

    kv: str
    blocks: int
    expires: float


class PrefillResults:
    """Finished prefills, until the first pull or the lease's end.

    Parameters
    ----------
    pool : BlockPool
    lease : float
        Seconds that a result is kept.
    """

    def __init__(self, pool: BlockPool, lease: float) -> None:
        self._pool = pool
        self._lease = lease
        self._held: dict[str, Held] = {}
        self.expired = 0

    def hold(self, request_id: str, kv: str, blocks: int, now: float) -> None:
        """Keep a result whose blocks are already taken from the pool."""
        self._held[request_id] = Held(kv, blocks, now + self._lease)

    def pull(self, request_id: str, now: float) -> str:
        """Return the KV contents that a pull reads, and free the blocks.

        A second or late pull raises no error, as on a real engine: it reads what others wrote into the blocks.
        """
        self.expire(now)
        held = self._held.pop(request_id, None)
        if held is None:
            return stale(request_id)
        self._pool.give(held.blocks)
        return held.kv

    def expire(self, now: float) -> int:
        """Free results whose lease has ended and return how many."""
        late = [key for key, held in self._held.items() if held.expires <= now]
        for key in late:
            self._pool.give(self._held.pop(key).blocks)
        self.expired += len(late)
        return len(late)

    def __len__(self) -> int:
        return len(self._held)

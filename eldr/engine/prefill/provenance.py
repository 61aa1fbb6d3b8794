"""Which KV blocks hold the counts of what a prompt has in them. Plain Python, no vLLM.

Counts belong to blocks, and a block's row keeps them until the first token of something else is computed there. vLLM gives blocks
to requests, and enters them in the prefix cache, without such a step: another connector fills them, they are copied, or the step
that was to compute them preempts its own request (docs/upstream/preempted-blocks.md). Every later request that finds such a block
would take the counts of whatever was there before. So each row is remembered with the content that was computed into it, by
the hashes under which vLLM finds blocks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Hashes = Sequence[Any]
"""Of a request's tokens up to the end of each piece that vLLM hashes, longer with every piece that is complete."""


class CountedBlocks:
    """Tracks what was computed into each block.

    Parameters
    ----------
    block_size : int
        Tokens of a block.
    hash_size : int
        Tokens from one hash of a request to the next.
    """

    def __init__(self, block_size: int, hash_size: int) -> None:
        self._block_size = block_size
        self._hash_size = hash_size
        self._hashes: dict[str, Hashes] = {}
        self._content: dict[int, tuple[Hashes, int]] = {}  # whose, and which of its blocks

    def add(self, request: str, hashes: Hashes) -> None:
        """Follow a request; the hashes grow in place."""
        self._hashes[request] = hashes

    def computed(
        self, scheduled: Iterable[tuple[str, int, int]], blocks_of: Callable[[str], list[int]]
    ) -> None:
        """Take a step: blocks whose first token it computes hold that request's tokens.

        Parameters
        ----------
        scheduled : iterable
            Request id, tokens computed before the step, tokens of the step.
        blocks_of : callable
            All KV blocks of a request, in order.
        """
        for request, before, tokens in scheduled:
            first, end = -(-before // self._block_size), -(-(before + tokens) // self._block_size)
            if first == end:
                continue
            began = blocks_of(request)[first:end]
            if (hashes := self._hashes.get(request)) is None:
                self.spoil(began)
            else:
                self._content |= {block: (hashes, at) for at, block in enumerate(began, first)}

    def spoil(self, blocks: Iterable[int]) -> None:
        """Take blocks with tokens that may not stay: they hold nothing until their first token is computed again."""
        for block in blocks:
            self._content.pop(block, None)

    def counted(self, request: str, blocks: Sequence[int]) -> list[int]:
        """Return those of a request's first blocks whose rows hold the counts of its own tokens."""
        hashes = self._hashes.get(request, ())
        return [block for at, block in enumerate(blocks) if self._holds(block, hashes, at)]

    def forget(self, request: str) -> None:
        """Drop a request; what it computed stays."""
        self._hashes.pop(request, None)

    def _holds(self, block: int, hashes: Hashes, at: int) -> bool:
        of, index = self._content.get(block, ((), -1))
        if index != at or of is hashes:
            return index == at
        # a block that is not full has no hash: only its own request uses it
        wanted = self._hash(hashes, at)
        return wanted is not None and self._hash(of, at) == wanted

    def _hash(self, hashes: Hashes, at: int) -> Any:
        last = -(-(at + 1) * self._block_size // self._hash_size) - 1
        return hashes[last] if last < len(hashes) else None

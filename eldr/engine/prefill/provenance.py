"""Which KV blocks hold tokens that this engine computed from their first one on. Plain Python, no vLLM.

Counts belong to blocks. A block that another connector fills, or that is copied from another one, keeps in its row
the counts of whatever it held before, for every later request that finds it in the prefix cache. Such rows must never
be summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class CountedBlocks:
    """Follows blocks from their allocation to the step that computes their first token."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._matched: dict[str, int] = {}
        self._uncounted: set[int] = set()

    def matched(self, request: str, tokens: int) -> None:
        """Remember how many tokens of a request lie in blocks of the prefix cache, before blocks are allocated."""
        self._matched[request] = tokens

    def allocated(self, request: str, blocks: Callable[[], list[int]]) -> None:
        """Take a request's blocks: those after its cached ones are new, and hold nothing counted yet.

        Parameters
        ----------
        blocks : callable
            All its blocks, in order.
        """
        # Asked only after a look-up in the prefix cache: vLLM allocates again when a load has arrived, and then the
        # blocks that were new at first may be in other requests' hands.
        tokens = self._matched.pop(request, None)
        if tokens is not None:
            self._uncounted.update(blocks()[tokens // self._block_size :])

    def computed(
        self, scheduled: Iterable[tuple[str, int, int]], blocks_of: Callable[[str], list[int]]
    ) -> None:
        """Take a step: blocks whose first token it computes are counted.

        Parameters
        ----------
        scheduled : iterable
            Request id, tokens computed before the step, tokens of the step.
        blocks_of : callable
            All KV blocks of a request, in order.
        """
        for request, before, tokens in scheduled if self._uncounted else ():
            first, end = -(-before // self._block_size), -(-(before + tokens) // self._block_size)
            if first < end:
                self._uncounted.difference_update(blocks_of(request)[first:end])

    def spoil(self, blocks: Iterable[int]) -> None:
        """Take blocks with tokens that may not stay: they hold nothing counted until their first token is computed again."""
        self._uncounted.update(blocks)

    def counted(self, blocks: Iterable[int]) -> list[int]:
        """Return those of some blocks whose rows can be summed."""
        return [block for block in blocks if block not in self._uncounted]

    def forget(self, request: str) -> None:
        """Drop what is remembered of a request; its blocks stay as they are."""
        self._matched.pop(request, None)

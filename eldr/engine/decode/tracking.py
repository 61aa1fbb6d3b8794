"""Which positions of which request count as its answer. Plain Python, no vLLM.

Counted are the generated tokens that are fed back: positions N .. N+G-2 of a prompt of N and an answer of G tokens,
each once. A pulled prompt's last token is computed again here and belongs to the prompt. Blocks of the KV cache map to
rows of counts: only the owner of a block writes into it, so a token's slot maps to its request and its position. A step may
compute positions again, after drafts that were rejected: see :class:`eldr.engine.capture.kernels.RequestRows`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Plan:
    """Changes of a worker's tables, to be applied in this order before the step's forward pass.

    Attributes
    ----------
    release : list
        Ended requests: id, row to read out and clear, last position that counts.
    unmap : list of int
        Blocks that no request generates into any more.
    map : list
        Block, row, position of its first token, first position that counts.
    """

    release: list[tuple[str, int, int]] = field(default_factory=list)
    unmap: list[int] = field(default_factory=list)
    map: list[tuple[int, int, int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.release or self.unmap or self.map)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that ended.

    Attributes
    ----------
    tokens : int
        Generated tokens that were fed, and so counted.
    row : int or None
        Its row, which a later report brings; None if there is nothing to bring.
    complete : bool
        False if no row was free for it.
    prompt : dict or None
        The counts of its prompt as readers get them; they can come later than the end.
    """

    tokens: int
    row: int | None
    complete: bool
    prompt: dict[str, Any] | None = None


@dataclass(slots=True)
class _Track:
    prompt: int
    generated: Callable[[], int]
    ran: bool = False
    placed: bool = False  # blocks from the start on are mapped as the request grows
    start: int = 0  # positions below do not count: prompt, or counted before a preemption
    n_mapped: int = 0
    row: int | None = None
    homeless: bool = False
    blocks: list[int] = field(default_factory=list)

    @property
    def fed(self) -> int:
        """Generated tokens whose successor is known, so that they were fed."""
        return max(0, self.generated() - 1)


def n_rows(config: Any) -> int:
    """Return how many requests can be counted at once: running ones, and preempted ones that keep their row."""
    return 2 * int(config.scheduler_config.max_num_seqs)


class Tracker:
    """Rows and blocks of the requests of an engine.

    Parameters
    ----------
    n_rows : int
        Requests that can be counted at once.
    """

    def __init__(self, n_rows: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(n_rows))
        self._tracks: dict[str, _Track] = {}
        self._release: list[tuple[str, int, int]] = []
        self._unmap: list[int] = []

    def __len__(self) -> int:
        return len(self._tracks)

    def add(self, request: str, prompt_tokens: int, generated: Callable[[], int]) -> None:
        """Begin to follow a request.

        Parameters
        ----------
        generated : callable
            Returns how many tokens of its answer are known.
        """
        self._tracks[request] = _Track(prompt_tokens, generated)

    def step(
        self,
        scheduled: Iterable[tuple[str, int, int]],
        preempted: Iterable[str],
        blocks_of: Callable[[str], list[int]],
    ) -> Plan:
        """Return what must change before a step.

        Parameters
        ----------
        scheduled : iterable
            Request id, tokens computed before the step, tokens of the step. The first number may be too high, by drafts that are
            rejected: the blocks are the request's all the same.
        preempted : iterable of str
            Requests that lost their blocks.
        blocks_of : callable
            All KV blocks of a request, in order.
        """
        plan = Plan(release=self._release, unmap=self._unmap)
        self._release, self._unmap = [], []
        for request in preempted:
            if (track := self._tracks.get(request)) is not None:
                self._drop(track, plan)
        for request, computed, tokens in scheduled:
            if (track := self._tracks.get(request)) is not None:
                if computed < track.prompt:  # or a failed load was rolled back
                    self._drop(track, plan)
                self._advance(track, computed + tokens, plan, functools.partial(blocks_of, request))
        return plan

    def _drop(self, track: _Track, plan: Plan) -> None:
        plan.unmap += track.blocks
        track.blocks, track.placed = [], False

    def _advance(self, track: _Track, end: int, plan: Plan, blocks: Callable[[], list[int]]) -> None:
        if not track.placed:  # what was counted stays counted
            track.start = track.prompt + track.fed
            track.n_mapped = track.start // self._block_size
        track.ran = track.placed = True
        if end <= track.start:
            return
        if track.row is None and self._free:
            track.row = self._free.pop()
        if track.row is None:
            track.homeless = True
            return
        needed = -(-end // self._block_size)
        if needed > track.n_mapped:
            all_blocks = blocks()
            for index in range(track.n_mapped, needed):
                plan.map.append((all_blocks[index], track.row, index * self._block_size, track.start))
                track.blocks.append(all_blocks[index])
            track.n_mapped = needed

    def reset(self) -> None:
        """Forget rows and blocks: requests that run have lost what was counted of them."""
        for track in self._tracks.values():
            if track.row is not None:
                self._free.append(track.row)
                track.row, track.homeless = None, True
            track.blocks, track.placed = [], False
        self._release, self._unmap = [], []

    def clear(self) -> None:
        """Stop following all requests."""
        self._tracks.clear()
        self._release, self._unmap = [], []

    def end(self, request: str, prompt: dict[str, Any] | None = None) -> Ended | None:
        """Stop following a request; None if it never ran.

        Its row is read out by the next step's plan, before anybody else can get it.
        """
        track = self._tracks.pop(request, None)
        if track is None or not track.ran:
            return None
        if track.row is not None:
            self._release.append((request, track.row, track.prompt + track.fed - 1))
            self._unmap += track.blocks
            self._free.append(track.row)
        return Ended(track.fed, track.row, not track.homeless, prompt)

"""Prefix blocks that prefill engines have seen, by engine. Pure.

References
----------
.. [1] Gateway API Inference Extension and llm-d, "approximate prefix cache": hashed blocks in an LRU of the router.
.. [2] SGLang's router, "cache aware": a tree of the texts that each worker was sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

_PER_SIZE = 16
_BLOCKS = 96
_FIRST = 256
SIZES = tuple(_FIRST << at // _PER_SIZE for at in range(_BLOCKS))
"""Bytes of each block: 256 for the first 16, then doubling every 16, so that a chain stays short and a prefix of any length
is known to a sixteenth."""
ENDS = tuple(sum(SIZES[: at + 1]) for at in range(_BLOCKS))
"""Where each block ends, bytes. What lies beyond the last one is not looked at."""
SHARED = 3
"""In how many ways prompts may go on after a beginning before it counts as shared by many, which every engine should have."""
_SPANS = tuple(zip((0, *ENDS[:-1]), ENDS, strict=True))


def chain(prompt: bytes | memoryview, model: bytes = b"") -> tuple[int, ...]:
    """Hash the prefixes of a prompt.

    Parameters
    ----------
    prompt : bytes or memoryview
        The prompt's JSON as it came; of a chat the ``messages`` array, whose later turns begin with the earlier ones but for
        the closing bracket.
    model : bytes
        Who reads it: engines keep what adapters (LoRA) computed apart.

    Returns
    -------
    tuple of int
        One per whole block, at most 96; the hash of a block stands for everything before its end. They mean something in
        this process only: Python's hash is keyed at random, so that no client can make two prompts collide.
    """
    text = bytes(prompt[: ENDS[-1]]) if isinstance(prompt, memoryview) else prompt
    size = len(text)
    hashes: list[int] = []
    above = hash(model)
    for begin, end in _SPANS:
        if end > size:
            break
        above = hash((above, text[begin:end]))
        hashes.append(above)
    return tuple(hashes)


class _Block:
    """Who was sent a prefix, how often it went on differently, and whether it went on at all."""

    __slots__ = ("branches", "engines", "grown")

    def __init__(self, engines: int) -> None:
        self.engines = engines
        self.branches = 1
        self.grown = True


class Match(NamedTuple):
    """What is known of one prompt's chain.

    Attributes
    ----------
    depth : int
        Blocks that an engine was sent before.
    steps : list of (int, float)
        Sets of engines, as bits, that were sent equally much of it, and what that is worth, from the least to the most.
    """

    depth: int
    steps: list[tuple[int, float]]


class PrefixIndex:
    """A bounded tree of prefixes: which engines, one bit each, were sent them.

    Parameters
    ----------
    capacity : int
        Blocks to remember; the least recently sent go first. One takes about 180 bytes.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, _Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def match(self, hashes: tuple[int, ...], engines: int) -> Match:
        """Look a chain up.

        A prefix is worth its bytes divided by the number of ways in which prompts went on after it. What one conversation
        said so far is worth all of it; a system prompt that a hundred conversations share is worth little, because each
        engine computes it once and then has it: it must not draw them all to the engine that saw it first.

        Parameters
        ----------
        hashes : tuple of int
            From :func:`chain`.
        engines : int
            Bits of those to ask about.
        """
        steps: list[tuple[int, float]] = []
        depth, worth = 0, 0.0
        get = self._blocks.get
        for key in hashes:
            block = get(key)
            if block is None:
                break
            if engines:
                knowing = engines & block.engines
                if knowing != engines:
                    steps.append((engines ^ knowing, worth))
                    engines = knowing
                many = block.branches
                worth += SIZES[depth] if many <= SHARED else SIZES[depth] * SHARED / many
            depth += 1
        if engines:
            steps.append((engines, worth))
        return Match(depth, steps)

    def branches(self, key: int) -> int:
        """Return in how many ways prompts went on after a block."""
        block = self._blocks.get(key)
        return 0 if block is None else block.branches

    def record(self, hashes: tuple[int, ...], depth: int, engine: int) -> None:
        """Record that an engine, a bit, is sent a prompt of known depth."""
        blocks = self._blocks
        branched = 0
        if 0 < depth < len(hashes):
            last = blocks[hashes[depth - 1]]
            branched = int(last.grown)  # the first to go on is the conversation itself, not a second one
            last.grown = True
        if depth < len(hashes):
            for key in reversed(
                hashes[depth:]
            ):  # the beginning last, so that a prefix outlives what follows it
                blocks[key] = _Block(engine)
            blocks[hashes[-1]].grown = False
        for key in reversed(hashes[:depth]):
            block = blocks[key]
            block.engines |= engine
            block.branches += branched
            blocks.move_to_end(key)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)

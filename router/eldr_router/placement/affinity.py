"""Prefill choice by prefix affinity and load. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from eldr_router.placement.prefixes import ENDS, SHARED, PrefixIndex, chain

_MASK = (1 << 64) - 1
BOUND = 1.25
SLACK = 4
"""How many requests above 1.25 times the mean an engine may have before a conversation goes elsewhere. Absolute, because
at low load a multiple of the mean is less than one request. With 2 conversations wander and compute more than they
gain by shorter queues; 6 gains nothing over 4 (simulated, ``make -C hack/lab bench-affinity``)."""
TOLERANCE = 4096
"""A known prefix must be worth so many bytes more elsewhere for a request to leave its home: about 1000 tokens are
better computed again than routers left to disagree about where a conversation lives."""
REASONS = ("session", "prefix", "home", "load")
_CLOSING = 8  # bytes, of a messages array: the bracket, and space around it
_KEY = 2048  # bytes of a conversation's prefix that are hashed, the last ones: they distinguish conversations
_TEXT, _PREFIX = (
    3,
    15,
)  # the blocks that end at 1 and at 4 KiB: how much of a prompt is tried first; then 12, 60 KiB
_BITS = 512


def seed(name: str) -> int:
    """Return an endpoint's fixed 64-bit seed."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


class Choice(NamedTuple):
    """A prefill engine.

    Attributes
    ----------
    position : int
        Its position among those offered.
    reason : str
        One of :data:`REASONS`: the session's engine; one that was sent the prompt's beginning before; the conversation's
        home; or none of these, because they have too much to do or there is nothing to go by.
    """

    position: int
    reason: str


class PrefixAffinity:
    """Chooses prefill engines where a prompt's beginning is cached.

    A conversation has a home, the same on every router though they do not talk: rendezvous hashing of how it began. It
    leaves for an engine that was sent more of its prompt, if that is worth 4 KiB, and for the next home while its own has
    more than 1.25 times the mean in flight and four. The first turn, of which caches hold no more than all share, leaves
    sooner: at 1.25 times the mean.

    Parameters
    ----------
    capacity : int
        Prefix blocks to remember, see :class:`eldr_router.placement.prefixes.PrefixIndex`.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._index = PrefixIndex(capacity)
        self._engines: dict[str, tuple[int, int]] = {}  # bit and seed by name
        self._next = 0
        self._last: tuple[list[str], tuple[list[int], list[int]]] | None = None
        self._turn = 0

    def choose(
        self,
        prompt: bytes | memoryview,
        engines: Sequence[str],
        loads: Sequence[int],
        *,
        prefix: int = 0,
        session: bytes = b"",
        model: bytes = b"",
    ) -> Choice:
        """Choose an engine for a prompt, and remember that it is sent there.

        Parameters
        ----------
        prompt : bytes or memoryview
            The prompt's JSON as it came: the ``messages`` array of a chat, else the value of ``prompt``. Empty if there is
            nothing to go by.
        engines : sequence of str
            Names of those that may be chosen, at least one.
        loads : sequence of int
            Prefills in flight on each, those of others as reported.
        prefix : int
            Bytes of ``prompt`` that all turns of this conversation begin with and others do not: of a chat, up to the end
            of the user's first message. If it is 0, the shortest beginning is taken that is not known to be shared.
        session : bytes
            Value of the session header. Where it is given it alone is the key: what was sent before does not count.
        model : bytes
            Its first name, see :mod:`eldr_router.engines.model_names`. Two adapters (LoRA) share no cached block, whatever their prompts.
        """
        if len(engines) == 1:
            return Choice(0, "session" if session else "home")
        self._turn += 1
        if not (prompt or session):
            turn, count = self._turn, len(engines)
            return Choice(min(range(count), key=lambda at: (loads[at], (at - turn) % count)), "load")
        hashes = () if session else chain(prompt, model)
        key = zlib.crc32(
            session or self._prefix_of(prompt, prefix, hashes), 0 if session else zlib.crc32(model)
        )
        bits, seeds = self._known(engines)
        scores = _scores(key, seeds)
        home = scores.index(max(scores))
        mean = BOUND * sum(loads) / len(loads)
        opening = 0 < prefix >= len(prompt) - _CLOSING
        limit = mean if opening and not session else mean + SLACK
        at = home
        if loads[home] > limit:  # the least loaded engine is always within it
            at = max((i for i, load in enumerate(loads) if load <= limit), key=scores.__getitem__)
        if session:
            return Choice(at, "session" if at == home else "load")
        admitted = 0
        for bit, load in zip(bits, loads, strict=True):
            if load <= mean + SLACK:
                admitted |= bit
        match = self._index.match(hashes, admitted)
        knowing, there = match.steps[-1]
        reason = "home" if at == home else "load"
        if there > TOLERANCE and not knowing & bits[at]:
            here = next(worth for knows, worth in match.steps if knows & bits[at])
            if there - here > TOLERANCE:
                at = max((i for i, bit in enumerate(bits) if bit & knowing), key=scores.__getitem__)
                reason = "prefix"
        self._index.record(hashes, match.depth, bits[at])
        return Choice(at, reason)

    def forget(self, names: Iterable[str]) -> None:
        """Forget engines that are gone, and with them their caches."""
        self._last = None
        for name in names:
            self._engines.pop(name, None)

    def _known(self, names: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the engines' bits and seeds."""
        if self._last is not None and self._last[0] == names:  # nearly always
            return self._last[1]
        if self._next > _BITS:
            # bits of engines that went were not used again, or the next one would have inherited their blocks
            self._index.clear()
            self._engines.clear()
            self._next = 0
        for name in names:
            if name not in self._engines:
                self._engines[name] = (1 << self._next, seed(name))
                self._next += 1
        known = [self._engines[name][0] for name in names], [self._engines[name][1] for name in names]
        self._last = list(names), known
        return known

    def _prefix_of(
        self, prompt: bytes | memoryview, prefix: int, hashes: tuple[int, ...]
    ) -> bytes | memoryview:
        """Return what distinguishes this conversation from others: its shortest beginning that is not known to be shared."""
        at = _PREFIX if prefix else _TEXT
        while at < len(hashes) and self._index.branches(hashes[at]) >= SHARED:
            at = 2 * at + 1
        if at < len(hashes) and (not prefix or ENDS[at] < prefix):
            return prompt[: ENDS[at]]
        return prompt[max(0, prefix - _KEY) : prefix] if prefix else prompt


def _scores(key: int, seeds: Sequence[int]) -> list[int]:
    # splitmix64's finaliser: hashing once per request and mixing per endpoint is ten times cheaper than hashing both
    mask = _MASK
    mixed = [(key ^ seed) * 0xBF58476D1CE4E5B9 & mask for seed in seeds]
    return [(x ^ (x >> 31)) * 0x94D049BB133111EB & mask for x in mixed]

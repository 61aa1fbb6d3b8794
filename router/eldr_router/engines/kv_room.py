"""Room in the KV caches of decode engines. Pure.

A request counts from its placement on as what it is expected to hold in the end: its prompt, and an answer of the usual
length, or its own limit if that is shorter. A decode engine reports how much of its KV cache is free. Requests that are placed
after the report take from that, and requests that end give back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from eldr_router.http.errors import RouterError, bad_request

_USUAL_ANSWER, _ANSWERS = 256.0, 8.0
"""Tokens of an answer before any engine has reported, and for how many answers that counts."""
_KEPT = 0.9
"""Weight of earlier reports beside a new one."""
_USUAL_TOKEN, _LONGEST_TOKEN = 4, 20
"""Bytes of a body for each token of its prompt: before any engine has reported, and beyond which it is no text."""
_RESERVE = 0.05
"""Share of a KV cache that long requests leave free, because answers grow and short requests come."""
_PART = 0.25
"""A request of that share, and of this part of what is free, waits at an engine: with 429, it would come back for another prefill."""
_SIZES = 32
"""Requests over which sizes are averaged."""


class KvCache(NamedTuple):
    """An engine's KV cache.

    Attributes
    ----------
    tokens : int
        Of all its ranks.
    largest : int
        Of one rank: what a single request may hold.
    used : float or None
        Share in use, if it reports it.
    expected : int
        Tokens that its requests were expected to hold in the end when it reported.
    """

    tokens: int
    largest: int
    used: float | None = None
    expected: int = 0


class Answers(NamedTuple):
    """Totals since an engine's start: tokens generated, requests finished."""

    tokens: float
    requests: float


class KvDemand(NamedTuple):
    """Tokens of KV that a request needs: for its prompts, and in the end.

    0 where the prompts' tokens are not known. The end is expected.
    """

    prompt: int
    size: int


class KvRoom:
    """Room in KV caches, by what requests are expected to hold.

    Attributes
    ----------
    share : float
        What engines hold for each token that their requests are expected to hold in the end: below 1 because answers have only
        begun, and because prompts share their beginning.
    mean_size : float
        Tokens that a sequence is expected to hold, mean of the requests placed lately; 0 before the first.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._answers: dict[str, Answers] = {}
        self._tokens, self._requests = _USUAL_ANSWER * _ANSWERS, _ANSWERS
        self._used = self._expected = 0.0
        self.mean_size = 0.0
        self._tokens_per_byte = 1 / _USUAL_TOKEN

    @property
    def mean_answer(self) -> float:
        """Tokens of an answer, mean of those that ended lately."""
        return self._tokens / self._requests

    def demand(self, prompt: int, limit: int | None, sequences: int) -> KvDemand:
        """Return what a request is expected to hold.

        Where the prompt's length is not known, what requests hold in the mean.

        Parameters
        ----------
        prompt : int
        limit : int or None
            Tokens that each answer may have.
        sequences : int
        """
        if not prompt:
            return KvDemand(0, round(self.mean_size * sequences))
        answer = self.mean_answer if limit is None else min(limit, self.mean_answer)
        return KvDemand(prompt, round(prompt + answer * sequences))

    def expected(self, size: int) -> float:
        """Return the tokens expected of a body of so many bytes."""
        return size * self._tokens_per_byte

    def doubt(self) -> None:
        """Move the learned length of tokens a little to the usual one.

        A prompt that no prefill engine gets teaches nothing.
        """
        self.learn(_USUAL_TOKEN, 1)

    def learn(self, size: int, prompt: int) -> None:
        """Learn bytes per token from what a prefill engine reports.

        Images take many bytes for few tokens, and teach nothing.
        """
        if prompt > size / _LONGEST_TOKEN:
            self._tokens_per_byte += (prompt / size - self._tokens_per_byte) / _SIZES

    def placed(self, demand: KvDemand) -> None:
        """Learn what requests hold."""
        if demand.prompt:
            weight = 1.0 / _SIZES if self.mean_size else 1.0
            self.mean_size += weight * (demand.size - self.mean_size)

    def observe(self, engine: str, answers: Answers | None, cache: KvCache | None) -> None:
        """Observe an engine's report."""
        if cache is not None and cache.used is not None and cache.expected:
            if not self._expected:  # begin with a full cache, as requests that were not pulled yet say little
                self._used = self._expected = float(cache.tokens)
            self._used = _KEPT * self._used + cache.used * cache.tokens
            self._expected = _KEPT * self._expected + cache.expected
            self.share = min(1.0, self._used / self._expected)
        if answers is None:
            return
        before = self._answers.get(engine, answers)
        self._answers[engine] = answers
        tokens, requests = answers.tokens - before.tokens, answers.requests - before.requests
        if requests > 0 and tokens >= 0:
            self._tokens = _KEPT * self._tokens + tokens
            self._requests = _KEPT * self._requests + requests

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        for engine in self._answers.keys() - set(engines):
            del self._answers[engine]

    def longest(self, caches: Sequence[KvCache | None], held: Sequence[int]) -> list[float]:
        """Return the tokens that a request may hold to fit on each engine.

        -1 where a cache is full, infinite where it is not known.

        Parameters
        ----------
        caches : sequence of KvCache or None
        held : sequence of int
            Tokens that each engine's sequences are expected to hold in the end.
        """
        longest: list[float] = []
        for cache, tokens in zip(caches, held, strict=True):  # inline: twice a request, for every engine
            if cache is None:
                longest.append(math.inf)
                continue
            total, _, used, expected = cache
            share = 1.0 if used is None else self.share
            free = total - tokens if used is None else total * (1.0 - used) - share * (tokens - expected)
            if free < 0.0:
                longest.append(-1.0)
                continue
            reserve = _RESERVE * total
            leaves, waits = free - reserve, reserve + _PART * free
            longest.append(max(leaves, waits) / (share or 1.0))
        return longest

    def room(
        self,
        demand: KvDemand,
        caches: Sequence[KvCache | None],
        held: Sequence[int],
        all_caches: Sequence[KvCache | None] = (),
    ) -> list[int]:
        """Return the positions of the engines that have room for a request.

        An engine without requests has room, as has one whose cache is not known. A prompt of unknown length needs a cache that is
        not full.

        Parameters
        ----------
        demand : KvDemand
        caches : sequence of KvCache or None
        held : sequence of int
            Tokens that each engine's sequences are expected to hold in the end.
        all_caches : sequence of KvCache or None
            Of these engines and those that take no request now: one that could ever hold it may be among them.

        Raises
        ------
        RouterError
            429 if none has room now, 400 if none could ever hold the prompt and the first token of its answer.
        """
        prompt, size = demand
        needed = size if prompt else 0
        longest = self.longest(caches, held)
        room = [
            at
            for at, (cache, tokens, most) in enumerate(zip(caches, held, longest, strict=True))
            if (needed <= most or not tokens) and _can_hold(cache, prompt)
        ]
        if room:
            return room
        able = [most for cache, most in zip(caches, longest, strict=True) if _can_hold(cache, prompt)]
        if not able and not any(_can_hold(cache, prompt) for cache in all_caches):
            raise _too_long(prompt, caches)
        raise _no_room(needed, max([0.0, *able]))


def _can_hold(cache: KvCache | None, prompt: int) -> bool:
    return cache is None or prompt < cache.largest


def _too_long(prompt: int, caches: Sequence[KvCache | None]) -> RouterError:
    largest = max(cache.largest for cache in caches if cache is not None)
    return bad_request(
        f"the prompt has {prompt} tokens, and the KV cache of a decode engine holds {largest} at most; shorten the prompt, or "
        "give decode engines more memory for KV",
        "context_length_exceeded",
    )


def _no_room(size: int, longest: float) -> RouterError:
    """Return the 429 for a request whose tokens fit nowhere now; of size 0 where its prompt's length is not known."""
    if size:
        why = f"the request holds about {size} tokens of KV, and no decode engine has room for more than {round(longest)}"
    else:
        why = "the KV caches of all decode engines are full"
    return RouterError(429, f"{why}; retry later, or add decode engines", "overloaded", retry_after=1)

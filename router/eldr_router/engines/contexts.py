"""What requests hold of decode engines' KV caches, and whether one more fits. Pure.

A request counts from its placement on as what it is expected to hold in the end: its prompt, and an answer of the usual
length, or its own limit if that is shorter. What engines then say that they hold corrects the sum: answers that have only
begun, prompts that share their beginning, windows. So a wrong expectation heals, and nothing is counted per token.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from eldr_router.http.errors import RouterError, bad_request

_FULL = 0.95
"""Share of a KV cache that requests may be expected to hold: the rest is for answers that get longer than usual."""
_USUAL, _SURE = 256.0, 8.0
"""Tokens of an answer before any engine has reported, and how many answers that counts for."""
_KEPT = 0.9
"""Share of what was reported before that counts beside each new report."""
_LEAST, _MOST = 0.01, 2.0
"""Of what engines hold against what is expected: with one shared beginning, hundreds of prompts hold hardly more than one."""
_DOUBT = 0.5
"""So much of a KV cache counts as held as expected, beside what was reported: a request that was not pulled yet says little."""
_DEVIATIONS = 2.0
"""Standard deviations of what answers hold for which there is room."""
_WAIT_SECONDS = 1.0
"""So long a request may wait at an engine for others to end: a client that gets 429 comes back no sooner, and needs another prefill."""
REPORT_SECONDS = 35.0
"""So long an engine's report says how often requests end there: engines are asked every 10 s."""
_USUAL_TOKEN, _LONGEST_TOKEN = 4, 20
"""Bytes of a body for each token of its prompt: before any engine has reported, and beyond which it is no text."""
_SIZES = 32
_LONGEST = 1 << 20
"""Tokens of an answer: more in the mean is a fault of the engine."""


class Cache(NamedTuple):
    """An engine's KV cache.

    Attributes
    ----------
    tokens : int
        Of all its ranks.
    largest : int
        Of one rank: what a single request may hold.
    used : float or None
        Share in use, if it reports it.
    """

    tokens: int
    largest: int
    used: float | None = None


class Answers(NamedTuple):
    """Totals since an engine's start: tokens generated, requests finished."""

    tokens: float
    requests: float


class _Report(NamedTuple):
    """What an engine reported last, when (monotonic seconds), and how many requests end there per second."""

    answers: Answers
    at: float
    rate: float = 0.0


class Context(NamedTuple):
    """What a request holds: tokens of its prompts, 0 where they are not known, and what it is expected to hold in the end."""

    prompt: int
    size: int


class Contexts:
    """What is expected of requests."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}
        self._tokens, self._requests = _USUAL * _SURE, _SURE
        self._used = self._expected = self._doubt = 0.0
        self._size = self._answer = 0.0
        self._tokens_per_byte = 1 / _USUAL_TOKEN

    @property
    def usual(self) -> float:
        """Tokens of an answer, mean of those that ended lately."""
        return self._tokens / self._requests

    @property
    def mean(self) -> float:
        """Tokens that a sequence is expected to hold, mean of the requests placed lately; 0 before the first."""
        return self._size

    @property
    def factor(self) -> float:
        """What engines hold for each token that is expected of their requests."""
        if not self._expected:
            return 1.0
        return min(_MOST, max(_LEAST, (self._used + self._doubt) / (self._expected + self._doubt)))

    def _at_once(self, sequences: int) -> float:
        """Return what so many sequences may hold at a time, for each token that they are expected to hold in the end.

        In the mean that is the factor. But as far as it is below 1 because answers have only begun, few sequences hold more than
        the mean by chance: each answer is anywhere between its begin and its end, so that what n of them hold deviates
        by 1 / sqrt(3 n) of its mean.
        """
        factor = self.factor
        begun = min(1.0 - factor, 0.5 * self._answer / self._size) if self._size else 0.0
        return factor + max(0.0, begun) * min(1.0, _DEVIATIONS / math.sqrt(3.0 * max(1, sequences)))

    def _freed_soon(self, engine: str, needed: int, now: float) -> float:
        """Return the tokens for a request of a size that others free on an engine while it may wait.

        Each that ends makes room for one like it, or for a smaller one. What long ones free is not counted on: they end seldom.
        """
        report = self._reports.get(engine)
        if report is None or now - report.at > REPORT_SECONDS:
            return 0.0
        return _WAIT_SECONDS * report.rate * min(needed or self._size, self._size)

    def of(self, prompt: int, limit: int | None, sequences: int) -> Context:
        """Return what a request is expected to hold: of a prompt of unknown length, what requests hold in the mean.

        Parameters
        ----------
        limit : int or None
            Tokens that each answer may have.
        """
        if not prompt:
            return Context(0, round(self._size * sequences))
        answer = self.usual if limit is None else min(limit, self.usual)
        return Context(prompt, round(prompt + answer * sequences))

    def expected(self, size: int) -> float:
        """Return how many tokens the prompt of a body of so many bytes is expected to have."""
        return size * self._tokens_per_byte

    def doubt(self) -> None:
        """Go back to the usual length of tokens, a little: a prompt that no prefill engine gets teaches nothing."""
        self.learn(_USUAL_TOKEN, 1)

    def learn(self, size: int, prompt: int) -> None:
        """Learn from the tokens that a prefill engine reports of a body's prompt; images take many bytes for few tokens, and teach nothing."""
        if prompt > size / _LONGEST_TOKEN:
            self._tokens_per_byte += (prompt / size - self._tokens_per_byte) / _SIZES

    def placed(self, context: Context) -> None:
        """Learn what requests hold."""
        if context.prompt:
            weight = 1.0 / _SIZES if self._size else 1.0
            self._size += weight * (context.size - self._size)
            self._answer += weight * (context.size - context.prompt - self._answer)

    def observe(
        self, engine: str, answers: Answers | None, cache: Cache | None, expected: int, now: float
    ) -> None:
        """Observe an engine's report, while so many tokens are expected on it."""
        if cache is not None and cache.used is not None and expected:
            self._doubt = _DOUBT * cache.tokens
            self._used = _KEPT * self._used + cache.used * cache.tokens
            self._expected = _KEPT * self._expected + expected
        if answers is None:
            return
        before, since, rate = self._reports.get(engine, _Report(answers, now))
        if now > since:
            rate = max(0.0, answers.requests - before.requests) / (now - since)
        self._reports[engine] = _Report(answers, now, rate)
        tokens, requests = answers.tokens - before.tokens, answers.requests - before.requests
        if requests > 0 and 0 <= tokens <= _LONGEST * requests:
            self._tokens = _KEPT * self._tokens + tokens
            self._requests = _KEPT * self._requests + requests

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        for engine in self._reports.keys() - set(engines):
            del self._reports[engine]

    def all_have_room(self, context: Context, caches: Sequence[Cache | None], held: Sequence[int]) -> bool:
        """Return whether nothing speaks against any engine, which is nearly always so; if it does, :meth:`room` says where."""
        prompt, size = context
        needed, share = size if prompt else 0, _FULL / max(1.0, self.factor)
        for cache, tokens in zip(caches, held, strict=True):  # a loop costs half as much as all() here
            if cache is not None and (needed > share * cache[0] - tokens or prompt >= cache[1]):
                return False
        return True

    def room(
        self,
        context: Context,
        engines: Sequence[str],
        caches: Sequence[Cache | None],
        held: Sequence[int],
        loads: Sequence[int],
        *,
        now: float,
        others: Sequence[Cache | None] = (),
    ) -> list[int]:
        """Return the engines, by position, that have room for a request: any where the cache is not known, or empty.

        A prompt of unknown length needs a cache that is not full.

        Parameters
        ----------
        held, loads : sequence of int
            Tokens that each engine's sequences are expected to hold in the end, and how many sequences these are.
        others : sequence of Cache or None
            Of all engines, these and those that take no request now: one that could ever hold it may be among them.

        Raises
        ------
        RouterError
            429 if none has room now, 400 if none could ever hold the prompt and the first token of its answer.
        """
        prompt, size = context
        needed = size if prompt else 0
        free: list[float] = []
        room: list[int] = []
        for at, (cache, tokens, load) in enumerate(zip(caches, held, loads, strict=True)):
            if cache is None:
                room.append(at)
            elif prompt < cache.largest:
                most = _FULL / self._at_once(load) * cache.tokens - tokens
                free.append(most)
                if needed <= (soon := self._freed_soon(engines[at], needed, now)):
                    most += soon
                if needed <= most or not tokens:
                    room.append(at)
        if room:
            return room
        if not free:
            if any(cache is None or prompt < cache.largest for cache in others):
                raise _no_room(needed, 0.0)
            raise _too_long(prompt, caches)
        raise _no_room(needed, max(free))


def _too_long(prompt: int, caches: Sequence[Cache | None]) -> RouterError:
    largest = max(cache.largest for cache in caches if cache is not None)
    return bad_request(
        f"the prompt has {prompt} tokens, and the KV cache of a decode engine holds {largest} at most; shorten the prompt, or "
        "give decode engines more memory for KV",
        "context_length_exceeded",
    )


def _no_room(size: int, free: float) -> RouterError:
    """Return the 429 for a request whose tokens fit nowhere now; of size 0 where its prompt's length is not known."""
    if size:
        why = f"the request holds about {size} tokens of KV, and no decode engine has room for more than {max(0, round(free))}"
    else:
        why = "the KV caches of all decode engines are full"
    return RouterError(429, f"{why}; retry later, or add decode engines", "overloaded", retry_after=1)

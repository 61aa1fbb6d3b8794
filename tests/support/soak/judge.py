"""What a client saw: right, excused by a disturbance, or a fault. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from eldr.sim import text
from tests.support.soak.asks import Ask
from tests.support.soak.plan import LEASE
from tests.support.soak.reader import Answer, read_stream, read_whole

GRACE = LEASE + 2.0
"""Seconds after a disturbance in which its effects may still be seen."""
ANY = ("kill", "stop", "freeze", "alone", "late")
_LIMITS = {"length", "max_output_tokens", "max_tokens"}
"""Reasons of answers that end with their last token: chats and completions, responses, messages."""
_EXCUSES = {
    "429": (*ANY, "tight"),
    "502": ANY,
    "503": ANY,
    "error": ("kill",),  # a stream that has begun breaks if its engine dies, and for nothing else
}


@dataclass(slots=True)
class Window:
    """A time in which something is disturbed, Unix seconds, and the ports of the routers whose clients may see it."""

    kind: str
    began: float
    ended: float = math.inf
    what: str = ""
    ports: tuple[int, ...] = (0,)


@dataclass(slots=True)
class Record:
    """What became of one request.

    Attributes
    ----------
    ask : Ask
    manner : str
    began, ended : float
        Unix seconds.
    end : str
        ``complete``: the answer is. ``left``: the client went. ``closed``, ``reset``: the connection ended before.
        ``hung``: nothing came. ``unsent``: it stood in a pipeline behind an answer that ended the connection.
    answer : Answer or None
    first : float
        Seconds to the first byte.
    port : int
        Of the router.
    """

    ask: Ask
    manner: str
    began: float
    ended: float
    end: str
    answer: Answer | None
    first: float = 0.0
    port: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and what is wrong with it, if anything is whatever was disturbed."""

    outcome: str
    problem: str = ""


def judge(record: Record, windows: Iterable[Window]) -> Verdict:
    """Judge a request by what its client saw, and by what was disturbed meanwhile."""
    verdict = _look(record)
    excuses = _EXCUSES.get(verdict.outcome)
    if excuses is None or _is_excused(record, excuses, windows):
        return verdict
    answer = record.answer.body[-300:] if record.answer else b""
    return Verdict(verdict.outcome, f"though nothing was disturbed that explains it: {answer!r}")


def _is_excused(record: Record, kinds: tuple[str, ...], windows: Iterable[Window]) -> bool:
    return any(
        window.kind in kinds
        and record.port in window.ports
        and window.began <= record.ended
        and record.began <= window.ended + GRACE
        for window in windows
    )


def _look(record: Record) -> Verdict:
    ask, answer, end = record.ask, record.answer, record.end
    if end == "hung":
        return Verdict("hung", "nothing came for too long")
    if answer is None:
        if end in ("left", "unsent"):
            return Verdict(end)
        return Verdict("lost", f"the connection was {end} without an answer")
    if answer.status != 200 and answer.status != ask.status:
        if answer.status in (429, 502, 503):
            return Verdict(str(answer.status))
        return Verdict(f"status {answer.status}", f"{ask.status} was expected; it said {answer.body[:300]!r}")
    if answer.status != ask.status:
        return Verdict("status 200", f"{ask.status} was expected")
    if not ask.prompts:
        done = end in ("complete", "left")
        return Verdict("ok") if done else Verdict("cut", f"a short answer was {end}")
    return (_streamed if ask.stream else _whole)(record, ask, answer)


def _whole(record: Record, ask: Ask, answer: Answer) -> Verdict:
    if not answer.complete:
        return Verdict("left") if record.end == "left" else Verdict("cut", f"a whole answer was {record.end}")
    try:
        said = read_whole(json.loads(answer.body))
    except (ValueError, KeyError, TypeError) as error:
        return Verdict("wrong", f"no answer: {error!r}: {answer.body[:300]!r}")
    if said.texts != _right(ask):
        return Verdict("wrong", f"it said {_shown(said.texts)} in place of {_shown(_right(ask))}")
    if said.tokens != ask.tokens * len(ask.prompts) or not said.reasons <= _LIMITS:
        return Verdict(
            "wrong", f"{said.tokens} tokens, {said.reasons}, for {len(ask.prompts)} choices of {ask.tokens}"
        )
    return Verdict("ok")


def _streamed(record: Record, ask: Ask, answer: Answer) -> Verdict:
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return Verdict("wrong", f"no stream: {answer.headers}")
    stream, right = read_stream(answer.body), _right(ask)
    if not all(right.get(index, "").startswith(said) for index, said in stream.texts.items()):
        return Verdict("wrong", f"it said {_shown(stream.texts)} in place of {_shown(right)}")
    if stream.problem:
        return Verdict("wrong", stream.problem)
    if stream.done and not stream.error and stream.texts != right:
        return Verdict("wrong", f"it ended after {_shown(stream.texts)} of {_shown(right)}")
    if record.end == "left" and not answer.complete:
        return Verdict("left")
    if not answer.complete:
        return Verdict("cut", f"a stream was {record.end} without an error event")
    if stream.error:
        return Verdict("error")
    return Verdict("ok") if stream.done else Verdict("silent cut", f"it ended with {answer.body[-200:]!r}")


def _right(ask: Ask) -> dict[int, str]:
    return {index: text.completion(prompt, ask.tokens) for index, prompt in enumerate(ask.prompts)}


def _shown(texts: dict[int, str]) -> str:
    return repr(texts if len(str(texts)) < 400 else f"{str(texts)[:400]}...")

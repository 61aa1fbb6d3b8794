"""What a request asks, and whether its answer is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson


class AnswerError(Exception):
    """An answer that is no complete stream of tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete stream.

    Attributes
    ----------
    tokens : int or None
        Completion tokens as the engine counts them; None if it does not say.
    """

    text: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request.

    Attributes
    ----------
    verify : callable
        Takes the answer and the tokens asked for, and returns why it is wrong, or None.
    fields : dict
        More fields of the body.
    tokens : int, optional
        Tokens to ask for instead of the demo's usual number.
    """

    text: str
    verify: Callable[[Answer, int], str | None]
    fields: dict[str, Any] = field(default_factory=dict)
    tokens: int | None = None


def read_stream(status: int, received: bytes) -> Answer:
    """Join the events of a streamed chat answer; AnswerError if it is none, holds an error event, or ends without ``[DONE]``."""
    if status != 200:
        raise AnswerError(f"HTTP {status}: {received[:200]!r}")
    said, tokens = "", None
    events = received.split(b"\n\n")
    for event in events:
        data = event.removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        value = orjson.loads(data)
        if "error" in value:
            raise AnswerError(f"error event: {value['error'].get('message')}")
        said += "".join(choice["delta"].get("content") or "" for choice in value["choices"])
        tokens = (value.get("usage") or {}).get("completion_tokens", tokens)
    if b"data: [DONE]" not in events:
        raise AnswerError("the stream ended without [DONE]")
    return Answer(said, tokens)

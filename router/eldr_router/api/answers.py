"""How an engine's answer begins: tokens, nothing yet, a failure. Pure.

A real engine fails after its head went out: a stream whose KV blocks could not be pulled is HTTP 200 with an error event,
in a chat after the opening chunk that only names the role; an engine that shuts down ends requests with the finish reason
``abort``, or ends a stream without a token. None of these is an answer, and none was forwarded yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import orjson

Word = Literal["tokens", "opening", "early", "error_event", "aborted"]

_DONE = b"[DONE]"
_MOST = 1 << 40
"""Tokens of a prompt; a larger number fits no report."""
_PROMPT = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def first_word(data: bytes) -> Word:
    """Return what an event says, if no event before it said anything.

    Returns
    -------
    {"tokens", "opening", "early", "error_event", "aborted"}
        ``opening`` says nothing yet, but comes after the pull; ``early`` says nothing and may come before it. ``tokens`` is
        also what the router does not understand, and an error that blames the client (4xx): that is passed on, never retried.
    """
    if data == _DONE:
        return "aborted"
    event = object_of(data)
    if event is None:
        return "tokens"
    if (error := event.get("error")) is not None:
        return "tokens" if blames_client(error) else "error_event"
    choices = event.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return "tokens"
    if any(_says_something(choice) for choice in choices):
        return "tokens"
    return "aborted" if any(_is_aborted(choice) for choice in choices) else "opening"


def has_aborted(answer: dict[str, Any]) -> bool:
    """Return whether some choice of a parsed answer was cut short."""
    choices = answer.get("choices")
    return isinstance(choices, list) and any(
        _is_aborted(choice) for choice in choices if isinstance(choice, dict)
    )


def is_aborted(body: bytes, is_cut: Callable[[dict[str, Any]], bool], hint: bytes) -> bool:
    """Return whether a whole answer was cut short by the engine's end.

    Parameters
    ----------
    body : bytes
    is_cut : callable
        Returns it of a parsed answer.
    hint : bytes
        Stands in every answer that was.
    """
    answer = object_of(body) if hint in body else None
    return answer is not None and is_cut(answer)


def object_of(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an event or an answer, or None."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def prompt_tokens(answer: dict[str, Any]) -> int:
    """Return the prompt's tokens by an answer; 0 if it does not report them."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return 0
    # the messages API reports what it found in a cache by itself
    parts = [usage.get(name) for name in _PROMPT]
    return min(_MOST, sum(number for number in parts if type(number) is int and number > 0))


def blames_client(error: object) -> bool:
    """Return whether an error object is the client's fault (4xx)."""
    code = error.get("code") if isinstance(error, dict) else None
    return isinstance(code, int) and 400 <= code < 500


def _is_aborted(choice: dict[str, Any]) -> bool:
    return choice.get("finish_reason") == "abort"


def _says_something(choice: dict[str, Any]) -> bool:
    if choice.get("text") or choice.get("token_ids"):
        return True
    if choice.get("finish_reason") is not None and not _is_aborted(choice):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")

"""A whole answer out of a stream, for clients that want it whole from an engine that was asked to stream. Pure.

References
----------
.. [1] OpenAI API reference, completions and chat completions: the objects of both forms; vLLM adds ``stop_reason``,
   ``token_ids``, ``prompt_token_ids`` and ``reasoning``.
"""

from __future__ import annotations

from typing import Any

import orjson

from eldr_router.http.events import EventReader
from eldr_router.plan.answers import blames_client, has_aborted, object_of

_TOP = (
    "id",
    "created",
    "model",
    "service_tier",
    "system_fingerprint",
    "metrics",
    "prompt_token_ids",
    "prompt_text",
)
_ONCE = ("finish_reason", "stop_reason", "prompt_token_ids")
_DONE = b"[DONE]"
_AROUND, _LEAST = 128, 64
"""Bytes of an event that are not kept, and of a word that is."""
_RICH = b'"logprobs":{'
_TREE = 4
"""How many bytes of memory a byte of such JSON takes."""


class AssemblyError(Exception):
    """A stream that is no answer.

    Parameters
    ----------
    cause : {"error_event", "aborted", "empty", "protocol"}
        A bounded metric label.
    answer : (int, bytes), optional
        Status and body for the client, if the engine blames it.
    """

    def __init__(self, cause: str, message: str, answer: tuple[int, bytes] | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.answer = answer


class EventAssembly:
    """Gathers a stream's events as they come, so that a long answer stops nobody at its end.

    Attributes
    ----------
    size : int
        Bytes of memory that are held, about.
    """

    __slots__ = ("_events", "size")

    def __init__(self) -> None:
        self._events = EventReader()
        self.size = 0

    def feed(self, payload: bytes) -> None:
        """Take decoded bytes of the stream, however it is cut; raises as :meth:`add` does."""
        for data in self._events.feed(payload):
            self.add(data)

    def add(self, data: bytes) -> None:
        """Take an event's data; AssemblyError if it holds an error, or is no part of an answer."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the whole answer that the stream stands for; AssemblyError if it was cut short, or held nothing."""
        raise NotImplementedError


class Assembly(EventAssembly):
    """A completion, or a chat's answer.

    Parameters
    ----------
    chat : bool
        A chat's answer: messages instead of text.
    """

    __slots__ = ("_answer", "_chat", "_choices", "_done")

    def __init__(self, *, chat: bool) -> None:
        super().__init__()
        self._chat = chat
        self._answer: dict[str, Any] = {"object": "chat.completion" if chat else "text_completion"}
        self._answer.update(dict.fromkeys(_TOP if chat else _TOP[:6]))
        self._answer["usage"] = None
        self._choices: dict[int, _Choice] = {}
        self._done = False

    def add(self, data: bytes) -> None:
        """See :class:`EventAssembly`."""
        if self._done or data == _DONE:
            self._done = True
            return
        event = parse_event(data)
        self.size += len(data) * _TREE if _RICH in data else max(_LEAST, len(data) - _AROUND)
        answer = self._answer
        for name in answer:
            if name != "object" and event.get(name) is not None:
                answer[name] = event[name]
        try:
            for part in event.get("choices") or ():
                index = part.get("index", 0)
                if not isinstance(index, int):
                    raise TypeError(index)  # noqa: TRY301 - as whatever else is wrong with a part
                choice = self._choices.get(index)
                if choice is None:
                    choice = self._choices[index] = _Choice()
                choice.add(part, chat=self._chat)
        except (AttributeError, TypeError):
            raise AssemblyError("protocol", f"its stream holds no completion chunk: {data[:60]!r}") from None

    def finish(self) -> bytes:
        """See :class:`EventAssembly`."""
        if not self._done:
            raise AssemblyError("protocol", "its stream ended without [DONE]")
        if not self._choices:
            raise AssemblyError("empty", "its stream held no answer")
        choices = [choice.whole(at, chat=self._chat) for at, choice in sorted(self._choices.items())]
        answer = {**self._answer, "choices": choices}
        if has_aborted(answer):
            raise AssemblyError("aborted", "it cut the answer short; it is shutting down")
        return orjson.dumps(answer)


def parse_event(data: bytes) -> dict[str, Any]:
    """Return an event's object; AssemblyError if it is none, or tells of an error."""
    event = object_of(data)
    if event is None:
        raise AssemblyError("protocol", f"its stream holds no JSON object: {data[:60]!r}")
    error = event.get("error")
    if error is not None:
        answer = (int(error["code"]), orjson.dumps({"error": error})) if blames_client(error) else None
        raise AssemblyError("error_event", "it reported an error in its stream", answer)
    return event


class _Choice:
    """One choice: lists that grow, joined once at the end."""

    __slots__ = ("_lists", "_logprobs", "_once", "_others", "_token_ids", "_words")

    def __init__(self) -> None:
        self._once: dict[str, Any] = {}
        self._words: dict[str, list[str]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._others: dict[str, Any] = {"role": "assistant"}
        self._token_ids: list[Any] | None = None
        self._logprobs: dict[str, list[Any]] | None = None

    def add(self, part: dict[str, Any], *, chat: bool) -> None:
        """Take a chunk's part; AttributeError or TypeError if it is none."""
        for name in _ONCE:
            if part.get(name) is not None:
                self._once[name] = part[name]
        if part.get("token_ids") is not None:
            self._token_ids = self._token_ids or []
            self._token_ids.extend(part["token_ids"])
        if part.get("logprobs") is not None:
            self._logprobs = self._logprobs or {}
            for name, values in part["logprobs"].items():
                self._logprobs.setdefault(name, []).extend(values or ())
        if not chat:
            self._say("text", part.get("text") or "")
            return
        for name, value in (part.get("delta") or {}).items():
            if name == "role":
                self._others[name] = value or self._others[name]
            elif isinstance(value, str):
                self._say(name, value)
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            elif value is not None:
                self._others[name] = value

    def _say(self, name: str, words: str) -> None:
        if not isinstance(words, str):
            raise TypeError(name)
        self._words.setdefault(name, []).append(words)

    def whole(self, index: int, *, chat: bool) -> dict[str, Any]:
        """Return the choice."""
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": self._logprobs,
            "finish_reason": None,
            "stop_reason": None,
        }
        words = {name: "".join(parts) for name, parts in self._words.items()}
        if chat:
            lists = {name: items for name, items in self._lists.items() if items}
            message = choice["message"] = {"content": None, **self._others, **lists, **words}
            if message["content"] == "" and message.get("reasoning"):
                message["content"] = None  # thoughts alone: only the opening chunk named a content
        else:
            choice["text"] = words["text"]
            choice["prompt_token_ids"] = None
        choice["token_ids"] = self._token_ids
        return choice | self._once

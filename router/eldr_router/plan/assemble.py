"""A whole answer out of a stream, for clients that want it whole from an engine that was asked to stream. Pure.

References
----------
.. [1] OpenAI API reference, completions and chat completions: the objects of both forms; vLLM adds ``stop_reason``,
   ``token_ids``, ``prompt_token_ids`` and ``reasoning``.
"""

from __future__ import annotations

from typing import Any

import orjson

from eldr_router.plan.answers import blames_client, has_aborted

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


class AssemblyError(Exception):
    """A stream that is no answer.

    Parameters
    ----------
    cause : {"error_event", "aborted", "empty", "protocol"}
        A bounded metric label.
    message : str
    answer : (int, bytes), optional
        Status and body for the client, if the engine blames it.
    """

    def __init__(self, cause: str, message: str, answer: tuple[int, bytes] | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.answer = answer


def assemble(events: list[bytes], *, chat: bool) -> bytes:
    """Return the whole answer that a stream stands for.

    Parameters
    ----------
    events : list of bytes
        Data of its events.
    chat : bool
        A chat's answer: messages instead of text.

    Raises
    ------
    AssemblyError
        If it holds an error, was cut short, or is no stream of completion chunks.
    """
    answer: dict[str, Any] = {"object": "chat.completion" if chat else "text_completion"}
    answer.update(dict.fromkeys(_TOP if chat else _TOP[:6]))
    answer["usage"] = None
    choices: dict[int, dict[str, Any]] = {}
    for data in events:
        if data == _DONE:
            break
        event = _parse(data)
        for name in answer:
            if name != "object" and event.get(name) is not None:
                answer[name] = event[name]
        for part in event.get("choices") or ():
            index = part.get("index", 0)
            _add(choices.setdefault(index, _new(index, chat=chat)), part, chat=chat)
    else:
        raise AssemblyError("protocol", "its stream ended without [DONE]")
    if not choices:
        raise AssemblyError("empty", "its stream held no answer")
    answer["choices"] = [choices[index] for index in sorted(choices)]
    for choice in choices.values() if chat else ():
        message = choice["message"]
        if message["content"] == "" and message.get("reasoning"):
            message["content"] = None  # thoughts alone: only the opening chunk named a content
    if has_aborted(answer):
        raise AssemblyError("aborted", "it cut the answer short; it is shutting down")
    return orjson.dumps(answer)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict):
        raise AssemblyError("protocol", f"its stream holds no JSON object: {data[:60]!r}")
    error = event.get("error")
    if error is not None:
        answer = (int(error["code"]), orjson.dumps({"error": error})) if blames_client(error) else None
        raise AssemblyError("error_event", "it reported an error in its stream", answer)
    return event


def _new(index: int, *, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None, "stop_reason": None}
    if chat:
        choice["message"] = {"role": "assistant", "content": None}
    else:
        choice["text"] = ""
        choice["prompt_token_ids"] = None
    choice["token_ids"] = None
    return choice


def _add(choice: dict[str, Any], part: dict[str, Any], *, chat: bool) -> None:
    for name in _ONCE:
        if part.get(name) is not None:
            choice[name] = part[name]
    if part.get("token_ids") is not None:
        choice["token_ids"] = [*(choice["token_ids"] or ()), *part["token_ids"]]
    if part.get("logprobs") is not None:
        choice["logprobs"] = _joined(choice["logprobs"] or {}, part["logprobs"])
    if not chat:
        choice["text"] += part.get("text") or ""
        return
    message = choice["message"]
    for name, value in (part.get("delta") or {}).items():
        if name == "role":
            message[name] = value or message[name]
        elif isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        elif isinstance(value, list) and value:
            message[name] = [*(message.get(name) or ()), *value]
        elif value is not None and not isinstance(value, list):
            message[name] = value


def _joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Join two objects of lists, as log-probabilities are."""
    return {name: [*(old.get(name) or ()), *(new.get(name) or ())] for name in {**old, **new}}

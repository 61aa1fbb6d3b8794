"""Answers of a simulated engine: the interface, completions, chats."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from eldr.sim.requests import Parsed

_DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """Builds the answer of one request; streams are lists of events.

    Attributes
    ----------
    id : str
        Of the request, with vLLM's prefix.
    """

    id: str

    def before(self) -> list[bytes]:
        """Return the events before the engine begins."""
        return []

    def opening(self, index: int) -> list[bytes]:
        """Return what opens a choice, before its first token but after the pull."""

    def piece(self, index: int, text: str, finish: str | None) -> list[bytes]:
        """Return one token."""

    def end(self, prompt_tokens: int, tokens: int) -> list[bytes]:
        """Return what ends the stream."""

    def failure(self) -> list[bytes]:
        """Return what a failed pull looks like, whose head went out with status 200 long ago: ``kv_load_failure_policy=fail``."""

    def unstreamed(
        self, texts: list[str], prompt_tokens: int, tokens: int, kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the answer of a request that was not streamed."""


def event(value: dict[str, Any], name: str = "") -> bytes:
    """Return one server-sent event."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + orjson.dumps(value) + b"\n\n"


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    """Return vLLM's error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Completion(Answer):
    """Of a completion or a chat."""

    def __init__(self, request: Parsed, request_id: str, model: str, created: int) -> None:
        self._chat = request.api == "chat"
        self._usage = request.include_usage
        self.id = f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}"
        self._head = {"id": self.id, "created": created, "model": model}

    def opening(self, index: int) -> list[bytes]:
        """Return the first chunk of a streamed chat; None of a completion."""
        if not self._chat:
            return []
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return [event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})]

    def piece(self, index: int, text: str, finish: str | None) -> list[bytes]:
        """Return the chunk of one streamed token."""
        payload = {"delta": {"content": text}} if self._chat else {"text": text}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        choice = {"index": index, **payload, "logprobs": None, "finish_reason": finish}
        return [event({**self._head, "object": kind, "choices": [choice]})]

    def end(self, prompt_tokens: int, tokens: int) -> list[bytes]:
        """Return the usage, with ``include_usage``, and the end."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        last = {**self._head, "object": kind, "choices": [], "usage": usage(prompt_tokens, tokens)}
        return [*([event(last)] if self._usage else []), _DONE]

    def failure(self) -> list[bytes]:
        """Return what a failed pull looks like."""
        return [event(error_body("Internal server error", "InternalServerError", 500)), _DONE]

    def unstreamed(
        self, texts: list[str], prompt_tokens: int, tokens: int, kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the answer of a request that was not streamed."""
        choices = [
            {
                "index": index,
                **({"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}),
                "logprobs": None,
                "finish_reason": "length",
            }
            for index, text in enumerate(texts)
        ]
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "usage": usage(prompt_tokens, tokens),
            "kv_transfer_params": kv_transfer_params,
        }


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    """Return the ``usage`` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }

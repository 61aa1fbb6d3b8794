"""Simulated answers of ``/v1/messages``: one block of text."""

from __future__ import annotations

from typing import Any

from eldr.sim.answers import Answer, event
from eldr.sim.requests import Parsed


class Message(Answer):
    """Of a message; vLLM makes it of a chat's answer."""

    def __init__(self, request: Parsed, request_id: str, model: str, created: int) -> None:
        del request, created
        self.id = f"chatcmpl-{request_id}"
        self._begun = False
        self._head = {"id": self.id, "type": "message", "role": "assistant", "model": model}

    def before(self) -> list[bytes]:
        """Return no events."""
        return []

    def opening(self, index: int) -> list[bytes]:
        """Return the event that opens a message."""
        del index
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(0, 0),
        }
        return [_event("message_start", message=message)]

    def piece(self, index: int, text: str, finish: str | None) -> list[bytes]:
        """Return one token, the first one with what opens its block."""
        del finish
        opening = []
        if not self._begun:
            block = {"type": "text", "text": ""}
            opening = [_event("content_block_start", index=index, content_block=block)]
        self._begun = True
        delta = {"type": "text_delta", "text": text}
        return [*opening, _event("content_block_delta", index=index, delta=delta)]

    def end(self, prompt_tokens: int, tokens: int) -> list[bytes]:
        """Return the events that close everything."""
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        return [
            _event("content_block_stop", index=0),
            _event("message_delta", delta=delta, usage=_usage(prompt_tokens, tokens)),
            _event("message_stop"),
        ]

    def failure(self) -> list[bytes]:
        """Return what vLLM makes of a chat's error event."""
        return [_event("error", error={"type": "internal_error", "message": "1 validation error"})]

    def unstreamed(
        self, texts: list[str], prompt_tokens: int, tokens: int, kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the complete message, without fields that are null."""
        (text,) = texts
        answer: dict[str, Any] = {
            **self._head,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "max_tokens",
        }
        if kv_transfer_params is not None:
            answer["kv_transfer_params"] = kv_transfer_params
        return {**answer, "usage": _usage(prompt_tokens, tokens)}


def _usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt_tokens, "output_tokens": tokens}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)

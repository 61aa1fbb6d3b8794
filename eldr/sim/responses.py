"""Simulated answers of ``/v1/responses``: one message of text."""

from __future__ import annotations

from typing import Any

from eldr.sim.answers import Answer, event
from eldr.sim.requests import Parsed


class Response(Answer):
    """Of a response; its id is the body's ``request_id``."""

    def __init__(self, request: Parsed, request_id: str, model: str, created: int) -> None:
        self.id = request.request_id or f"resp_{request_id}"
        self._item = f"msg_{request_id}"
        self._text = ""
        self._number = 0
        self._head: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": created,
            "model": model,
            "instructions": request.instructions,
            "max_output_tokens": request.max_tokens,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "background": False,
        }

    def before(self) -> list[bytes]:
        """Return the events before the engine begins."""
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        return [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]

    def opening(self, index: int) -> list[bytes]:
        """Return no events: a message begins with its first token."""
        del index
        return []

    def piece(self, index: int, text: str, finish: str | None) -> list[bytes]:
        """Return one token, the first one with what opens its message."""
        del index, finish
        at: dict[str, Any] = {"item_id": self._item, "output_index": 0, "content_index": 0}
        opening = []
        if not self._text:
            item = {**self._message("in_progress"), "content": []}
            part = {"type": "output_text", "text": "", "annotations": []}
            opening = [
                self._event("response.output_item.added", item=item, output_index=0),
                self._event("response.content_part.added", part=part, **at),
            ]
        self._text += text
        return [*opening, self._event("response.output_text.delta", delta=text, logprobs=[], **at)]

    def end(self, prompt_tokens: int, tokens: int) -> list[bytes]:
        """Return the events that close everything."""
        at: dict[str, Any] = {"item_id": self._item, "output_index": 0, "content_index": 0}
        item = self._message("completed")
        response = self.unstreamed([self._text], prompt_tokens, tokens, None)
        return [
            self._event("response.output_text.done", text=self._text, logprobs=[], **at),
            self._event("response.content_part.done", part=item["content"][0], **at),
            self._event("response.output_item.done", item=item, output_index=0),
            self._event("response.completed", response=response),
        ]

    def failure(self) -> list[bytes]:
        """Raise: vLLM fails to send an error, and cuts the connection."""
        raise ConnectionError("the pull failed")

    def unstreamed(
        self, texts: list[str], prompt_tokens: int, tokens: int, kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the complete response; its status is incomplete."""
        (self._text,) = texts
        return {
            **self._head,
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [self._message("completed")],
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt_tokens + tokens,
            },
            "kv_transfer_params": kv_transfer_params,
        }

    def _message(self, status: str) -> dict[str, Any]:
        content: list[Any] = [
            {"type": "output_text", "text": self._text, "annotations": [], "logprobs": None}
        ]
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({**fields, "sequence_number": number, "type": kind}, kind)

"""Asks a router or an engine, and reports what came back as token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.vllm.prompts import CHAT, Case

SECONDS = 240.0


@dataclass
class Answer:
    """``outcome`` is ok, error (an error event), cut, or a status; ``prompt`` holds token ids of answers that are not streamed."""

    outcome: str
    ids: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def ask(url: str, case: Case, *, stream: bool, **fields: Any) -> Answer:
    """Send one request and read all of its answer."""
    body = case.body(stream=stream, **fields)
    answer = Answer("silent cut")
    try:
        with httpx.stream("POST", url + case.path, json=body, timeout=SECONDS) as got:
            answer.headers = dict(got.headers)
            if got.status_code != 200:
                answer.outcome, answer.text = str(got.status_code), got.read().decode()
            elif stream:
                _read_events(got, answer)
            else:
                whole = json.loads(got.read())
                (choice,) = whole["choices"]
                answer.ids, answer.text = choice["token_ids"], _text(case, choice)
                answer.prompt = whole.get("prompt_token_ids") or choice.get("prompt_token_ids") or []
                answer.outcome = "ok"
    except httpx.TransportError as error:
        answer.outcome, answer.text = "cut", repr(error)
    return answer


def _text(case: Case, choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if case.path == CHAT else choice["text"]


def _read_events(got: httpx.Response, answer: Answer) -> None:
    for line in got.iter_lines():
        if line == "data: [DONE]":
            answer.outcome = "ok"  # and read on: who leaves before the end has left
        if not line or answer.outcome == "ok":
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            answer.outcome, answer.text = "error", line
            return
        for choice in event["choices"]:
            answer.ids += choice.get("token_ids") or []

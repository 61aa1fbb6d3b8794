"""HTTP/1.1 responses out of a connection's bytes, and the events of a stream. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httptools


@dataclass(slots=True)
class Answer:
    """One response, as far as it has come.

    Attributes
    ----------
    complete : bool
        Its framing says that it is over.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


class Reader:
    """Incremental reader of one connection.

    Attributes
    ----------
    answers : list of Answer
        In order; interim ones (100) are counted alone.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._current = Answer()
        self.answers: list[Answer] = []
        self.interim = 0
        self.problem = ""

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problem = f"{type(error).__name__}: {error}"

    def on_message_begin(self) -> None:
        self._current = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._current.status = self._parser.get_status_code()
        if self._current.status >= 200:
            self.answers.append(self._current)

    def on_body(self, data: bytes) -> None:
        self._current.parts.append(data)

    def on_message_complete(self) -> None:
        self._current.complete = True
        self.interim += self._current.status < 200


@dataclass(slots=True)
class Stream:
    """What the events of a stream say.

    Attributes
    ----------
    texts : dict of int to str
        By choice.
    done : bool
        It ended as streams of its kind do.
    error : bool
        It held an error.
    problem : str
        What was no event.
    """

    texts: dict[int, str] = field(default_factory=dict)
    done: bool = False
    error: bool = False
    problem: str = ""


def read_stream(body: bytes) -> Stream:
    """Read the events of a stream; what follows the last empty line is not there yet."""
    stream = Stream()
    for event in body.split(b"\n\n")[:-1]:
        if not event.strip():
            continue
        data = event[event.find(b"data: ") + 6 :]
        if data == b"[DONE]":
            stream.done = True
            continue
        try:
            fields = json.loads(data)
        except ValueError:
            stream.problem = stream.problem or f"no JSON: {event[:80]!r}"
            continue
        kind = fields.get("type", "")
        if "error" in fields or kind == "response.failed":
            stream.error = True
            continue
        if stream.done or stream.error:
            stream.problem = stream.problem or f"after its end: {event[:80]!r}"
        stream.done |= kind in _LAST
        for choice in [{"index": 0, "text": _delta(kind, fields)}] if kind else fields["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            stream.texts[choice["index"]] = stream.texts.get(choice["index"], "") + (text or "")
    return stream


_LAST = ("response.completed", "response.incomplete", "message_stop")


def _delta(kind: str, fields: dict[str, Any]) -> str:
    match kind:
        case "response.output_text.delta":
            return str(fields["delta"])
        case "content_block_delta":
            return str(fields["delta"]["text"])
        case _:
            return ""


@dataclass(frozen=True, slots=True)
class Whole:
    """What an answer that is not streamed says.

    Attributes
    ----------
    texts : dict of int to str
        By choice.
    tokens : int
        Of all choices.
    reasons : set of str
        Why choices ended.
    """

    texts: dict[int, str]
    tokens: int
    reasons: set[str]


def read_whole(fields: dict[str, Any]) -> Whole:
    """Read an answer; KeyError if it is none."""
    usage = fields["usage"]
    if "output" in fields:
        (item,) = fields["output"]
        texts = {0: item["content"][0]["text"]}
        return Whole(texts, usage["output_tokens"], {fields["incomplete_details"]["reason"]})
    if "content" in fields:
        (block,) = fields["content"]
        return Whole({0: block["text"]}, usage["output_tokens"], {fields["stop_reason"]})
    choices = fields["choices"]
    texts = {one["index"]: one["message"]["content"] if "message" in one else one["text"] for one in choices}
    return Whole(texts, usage["completion_tokens"], {one["finish_reason"] for one in choices})

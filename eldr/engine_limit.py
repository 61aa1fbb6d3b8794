"""The limit of sequences in flight, held by the engine itself: an ASGI middleware in front of its handlers.

A request is judged when its body is complete and before the engine sees it. A refused one has cost nothing: nothing was read, pulled or
computed, so that a prefill result which it names can still go to another engine. Pure ASGI and the standard library, because vLLM's API
servers and the simulated engine both run it.

References
----------
.. [1] ASGI specification 3.0, HTTP connection scope: https://asgi.readthedocs.io/en/latest/specs/www.html
.. [2] ``fcntl(2)``, advisory record locking: a process's locks end with the process.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import mmap
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from eldr import contract

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATES = frozenset((
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages",
    "/inference/v1/generate", "/cohere/v2/chat", "/invocations", "/generative_scoring", "/v1/systemone",
    "/v1/audio/transcriptions", "/v1/audio/translations",
))  # fmt: skip
"""Paths of vLLM whose requests run sequences."""
MOST_BODY = 256 << 20
"""Bytes of a request's body."""
BODY_SECONDS = 60.0
"""Longest wait for a body."""
NO_LIMIT = 1 << 20
"""Sequences of an engine that reports its load and refuses nothing, as prefill engines do: their requests queue."""
MOST_SEQUENCES = 1 << 16
"""Of one request; what asks for more is not served by any engine."""

_STATE = "eldr_limit"
_COMPLETIONS, _CHATS, _TOKENS = "/v1/completions", "/v1/chat/completions", "/inference/v1/generate"
_WITH_CHOICES = frozenset((_COMPLETIONS, _CHATS, f"{_CHATS}/batch", "/invocations"))
_PROMPTS = {
    **dict.fromkeys((_COMPLETIONS, "/invocations"), ("prompt", "prompt_embeds")),
    f"{_CHATS}/batch": ("messages",), "/generative_scoring": ("items",), "/v1/systemone": ("questions",),
}  # fmt: skip
"""Fields by path that may hold several prompts; what a path does not read takes no place."""
_ROWS = 64
_BYTES = _ROWS * 8


class InFlight:
    """Sequences in flight on an engine, over all processes that serve it.

    Each process owns a row of a shared file, and holds a lock on the row's number while it lives. The rows of killed processes are
    cleared by those that live, so that a restart leaves no count behind.

    Parameters
    ----------
    path : Path, optional
        The file that the processes share; None where one process serves the engine.

    Raises
    ------
    OSError
        If the file cannot be had, or more than 64 processes serve the engine.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._fd = -1
        self._row = 0
        if path is None:
            self._cells = memoryview(bytearray(_BYTES)).cast("q")
            return
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._fd, _BYTES)
        self._cells = memoryview(mmap.mmap(self._fd, _BYTES)).cast("q")
        with self._alone():
            row = next((row for row in range(_ROWS) if self._lock(row)), None)
            if row is None:
                raise OSError(f"{path}: {_ROWS} processes serve this engine already")
            self._row = row
            self._cells[row] = 0
            self.clear()

    @property
    def count(self) -> int:
        """Sequences in flight."""
        return sum(self._cells)

    def take(self, sequences: int, limit: int) -> bool:
        """Count a request if fewer sequences than the limit are in flight; False if it is to be refused."""
        with self._alone():
            if self.count >= limit:
                self.clear()
                if self.count >= limit:
                    return False
            self._cells[self._row] += sequences
            return True

    def give(self, sequences: int) -> None:
        """Count a request no longer."""
        self._cells[self._row] -= sequences

    def clear(self) -> None:
        """Forget what killed processes had in flight."""
        for row, count in enumerate(self._cells):
            if count and row != self._row and self._lock(row):
                self._cells[row] = 0
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, row)

    def _lock(self, row: int) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except OSError:  # the process that holds it lives
            return False
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time look and write; its end ends the lock too."""
        if self._fd < 0:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _ROWS)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _ROWS)


class Bound(NamedTuple):
    """What an engine holds to.

    Attributes
    ----------
    in_flight : InFlight
    limit : int
        Sequences, where a request does not carry its router's limit.
    changed : callable
        Called with the sequences in flight after each change.
    refused : callable
        Called for each refused request.
    """

    in_flight: InFlight
    limit: int
    changed: Callable[[int], object] = lambda _: None
    refused: Callable[[], object] = lambda: None


def hold_to(state: Any, bound: Bound | None) -> None:
    """Set what the middleware of an application's state holds to; None: to nothing."""
    setattr(state, _STATE, bound)


class EngineLimit:
    """The middleware.

    It answers ``GET /eldr/v1/load``, adds ``x-eldr-load`` to every answer, and refuses with 429 and ``x-eldr-full`` what an engine that
    is full is asked to generate.

    Parameters
    ----------
    app : callable
        The ASGI application behind it.
    state : object
        The application's state, see :func:`hold_to`.
    """

    def __init__(self, app: App, state: Any) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        bound: Bound | None = getattr(self._state, _STATE, None)
        if bound is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def reporting(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (_LOAD, _share(bound.in_flight.count, bound.limit)),
                ]
            await send(message)

        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == contract.PATH_LOAD:
            bound.in_flight.clear()
            count = bound.in_flight.count
            bound.changed(count)
            await _answer(reporting, 200, {"v": 1, "in_flight": count, "limit": bound.limit})
        elif scope["method"] == "POST" and path in GENERATES:
            await self._generate(bound, path, scope, receive, reporting)
        else:
            await self._app(scope, receive, reporting)

    async def _generate(self, bound: Bound, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _body_of(receive)
        except _BadBodyError as error:
            await _answer(send, error.status, _error(error.status, "invalid_request_error", str(error)))
            return
        if body is None:  # the client is gone
            return
        headers = dict(scope["headers"])
        in_flight = bound.in_flight
        sequences = sequences_of(path, body)
        limit = min(_number(headers.get(_LIMIT)) or bound.limit, bound.limit)
        if sequences and not in_flight.take(sequences, limit):
            count = in_flight.count
            bound.refused()
            text = f"this engine has {count} of {limit} sequences in flight; retry, or ask another one"
            head = [(_FULL, _share(count, limit)), (b"retry-after", b"1")]
            await _answer(send, 429, _error(429, "overloaded_error", text), head)
            return
        bound.changed(in_flight.count)
        sent = over = False

        def leave() -> None:
            nonlocal over
            if not over:
                over = True
                in_flight.give(sequences)
                bound.changed(in_flight.count)

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                leave()  # before the client receives the end: it may ask again at once
            await send(message)

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self._app(scope, replay, answering)
        finally:
            leave()


_LIMIT, _LOAD, _FULL = (
    name.encode() for name in (contract.HEADER_LIMIT, contract.HEADER_LOAD, contract.HEADER_FULL)
)


class _BadBodyError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _body_of(receive: Receive) -> bytes | None:
    """Return a request's complete body; None if the client went away."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MOST_BODY:
                    raise _BadBodyError(413, f"body: more than {MOST_BODY >> 20} MiB; send less")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        text = f"body: it did not come within {BODY_SECONDS:g} s; send the request again"
        raise _BadBodyError(408, text) from None


def sequences_of(path: str, body: bytes) -> int:
    """Return how many sequences an engine runs for a request: its prompts times its choices; 1 for a body that it cannot read.

    Numbers are read as leniently as vLLM does. A completion that streams beams runs none: vLLM rejects it whatever else it holds, and
    routers have prefill results freed so, on full engines too.
    """
    try:
        fields = json.loads(body)
        if path == _COMPLETIONS and fields.get("use_beam_search") is True and fields.get("stream") is True:
            return 0
        chosen = (
            fields.get("sampling_params") if path == _TOKENS else fields if path in _WITH_CHOICES else None
        )
        return min(max(1, _prompts(path, fields)) * max(1, _choices(chosen)), MOST_SEQUENCES)
    except (ValueError, RecursionError, AttributeError):
        return 1


def _prompts(path: str, fields: dict[str, Any]) -> int:
    prompts = [fields.get(name) for name in _PROMPTS.get(path, ())]
    return sum(
        len(each)
        if isinstance(each, dict) or (isinstance(each, list) and each and isinstance(each[0], list | str))
        else each is not None
        for each in prompts
    )


def _choices(fields: Any) -> int:
    choices = fields.get("n") if isinstance(fields, dict) else None
    try:
        return int(float(choices) if isinstance(choices, str) else choices or 1)
    except (ValueError, TypeError, OverflowError):
        return 1


def _number(header: bytes | None) -> int:
    """Return the number in a header; 0 if it has none."""
    return (
        min(int(header), MOST_SEQUENCES)
        if header is not None and header.isdigit() and len(header) < 10
        else 0
    )


def _share(count: int, limit: int) -> bytes:
    return f"{count}/{limit}".encode()


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    """Return an error as OpenAI's clients and Anthropic's read it."""
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": status}}


async def _answer(
    send: Send, status: int, value: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = json.dumps(value).encode()
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *(headers or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})

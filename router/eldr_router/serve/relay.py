"""Forwards one response body to a client, and ends it decently when the engine dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eldr_router.http.errors import error_body
from eldr_router.http.framing import Body, FirstEvent
from eldr_router.net.connection import BrokenError
from eldr_router.plan.answers import is_opening

_HOLD = 1 << 16


class Relay:
    """A sink that passes a body on, whole units as they come.

    A chunk that is not complete is held back, so that the client can always be given an error event and a proper end.
    Until :meth:`start` everything waits in memory.

    Parameters
    ----------
    body : Body
        Tracker of the response body.
    waiter : asyncio.Future
        Completes with None, or the failure, when the body is over.
    dechunk : bool
        Decode chunks, for clients of HTTP/1.0.
    peek : asyncio.Future, optional
        Completes with the data of the first server-sent event that says something, None if there is none.
    opened : asyncio.Future, optional
        Completes with the first event that says nothing yet.
    """

    __slots__ = (
        "_body",
        "_dechunk",
        "_event",
        "_held",
        "_last",
        "_opened",
        "_peek",
        "_pending",
        "_torn",
        "_write",
        "waiter",
    )

    def __init__(
        self,
        body: Body,
        waiter: asyncio.Future[BrokenError | None],
        *,
        dechunk: bool = False,
        peek: asyncio.Future[bytes | None] | None = None,
        opened: asyncio.Future[None] | None = None,
    ) -> None:
        self._body = body
        self.waiter = waiter
        self._dechunk = dechunk
        self._peek = peek
        self._opened = opened
        self._event = None if peek is None else FirstEvent(skip=self._is_opening)
        self._pending: list[bytes] = []
        self._write: Callable[[bytes], object] = self._pending.append
        self._held = b""
        self._last = b""
        self._torn = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; see :class:`eldr_router.net.connection.Sink`."""
        if self._event is not None or self._dechunk:
            return self._feed_decoded(data)
        boundary = self._body.feed(data)
        if boundary == len(data) and not self._held and not self._torn:
            self._last = data
            self._write(data)
        else:
            self._forward(data, boundary)
        return self._body.ended

    def _feed_decoded(self, data: bytes) -> bool:
        payload: list[bytes] = []
        boundary = self._body.feed(data, payload)
        if self._dechunk:
            self._forward(b"".join(payload), -1)
        else:
            self._forward(data, boundary)
        if self._event is not None and (self._event.feed(b"".join(payload)) or self._body.ended):
            self._found(self._event.data)
        return self._body.ended

    def _forward(self, data: bytes, boundary: int) -> None:
        if boundary < 0 or not self._body.splittable:
            out = data
        elif boundary:
            out, self._held = self._held + data[:boundary], data[boundary:]
            self._torn = False
        else:
            out, self._held = b"", self._held + data
        if len(self._held) > _HOLD or (self._torn and self._held):
            out, self._held, self._torn = out + self._held, b"", True
        if out:
            self._last = out
            self._write(out)

    def _is_opening(self, data: bytes) -> bool:
        opening = is_opening(data)
        if opening and self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        return opening

    def _found(self, data: bytes | None) -> None:
        self._event = None
        if self._peek is not None and not self._peek.done():
            self._peek.set_result(data)

    def held(self) -> bytes:
        """Return what has come before :meth:`start`."""
        return b"".join(self._pending)

    def start(self, write: Callable[[bytes], object], head: bytes) -> None:
        """Send the head and what has come so far; from now on bytes go straight to ``write``."""
        self._write = write
        write(head + self.held())
        self._pending = []

    def eof(self) -> bool:
        """See :class:`eldr_router.net.connection.Sink`."""
        return self._body.eof()

    def finish(self, error: BrokenError | None) -> None:
        """See :class:`eldr_router.net.connection.Sink`."""
        if self._peek is not None and not self._peek.done():
            if error is None:
                self._peek.set_result(None)
            else:
                self._peek.set_exception(error)
        if not self.waiter.done():
            self.waiter.set_result(error)

    def epitaph(self, message: str) -> bytes | None:
        """Return what ends a broken event stream decently, or None if the client stands inside a unit."""
        if self._torn or not (self._body.splittable or self._dechunk):
            return None
        whole = self._last.endswith(b"\n\n" if self._dechunk else b"\n\n\r\n")
        event = b"data: " + error_body(message, 502, "upstream_failed") + b"\n\n"
        if not whole and self._last:
            event = b"\n\n" + event
        return event if self._dechunk else b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)

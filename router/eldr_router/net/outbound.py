r"""One connection to an engine or another router.

The connection is an explicit state machine::

    IDLE -- send --> HEAD -- head --> BODY -- end --> IDLE     (back in its pool)
                       \______________\__ broken, dropped __> CLOSED

Whoever receives a response is the only one who may pause, resume or drop its connection; once the response is over the
connection serves other requests and no longer listens to that receiver.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from enum import Enum
from typing import Protocol, cast

from eldr.addresses import Address
from eldr_router.http.framing import FramingError, LengthBody, Tracker
from eldr_router.http.head import ResponseHead, parse_head

log = logging.getLogger(__name__)

IDLE_SECONDS = 3.0
"""Engines (uvicorn) close idle connections after 5 s; ours go first, so that a request rarely meets a closed one."""
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_MAX_HEAD = 1 << 16
_NO_BODY = LengthBody(0)


class ConnectError(Exception):
    """The other side accepted no connection, and saw no request.

    Parameters
    ----------
    message : str
    own : bool
        This process could not even ask: it lacks descriptors or memory. That says nothing about the other side.
    distrust : str
        What is wrong with its TLS; empty if that is not it.
    """

    def __init__(self, message: str, *, own: bool = False, distrust: str = "") -> None:
        super().__init__(message)
        self.own = own
        self.distrust = distrust


class BrokenError(Exception):
    """An exchange failed after the request may have been seen.

    ``cause`` is a bounded metric label.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class State(Enum):
    """Where a connection stands."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    CLOSED = "closed"


_IDLE, _HEAD, _BODY, _CLOSED = State  # an enum's attributes cost five times a name's
_MISREAD = "protocol", "its answer could not be understood"


class Receiver(Protocol):
    """What takes one response.

    Attributes
    ----------
    payload : list of bytes or None
        Decoded parts of the body are appended to it, if it is a list.
    """

    payload: list[bytes] | None

    def on_head(self, head: ResponseHead) -> None:
        """Take the head."""

    def on_body(self, data: bytes, boundary: int) -> None:
        """Take bytes of the body; up to ``boundary`` they are whole units."""

    def on_end(self) -> None:
        """End the response. The connection is no longer this receiver's."""

    def on_broken(self, error: BrokenError) -> None:
        """Nothing more comes. The connection is no longer this receiver's."""


class Owner(Protocol):
    """What keeps connections between exchanges."""

    def put(self, connection: EngineConnection) -> None:
        """Take a connection back after a clean exchange."""

    def forget(self, connection: EngineConnection) -> None:
        """Drop a connection that was lost."""


class EngineConnection(asyncio.Protocol):
    """One connection; between exchanges it rests in its pool."""

    __slots__ = (
        "_buffer",
        "_keep_alive",
        "_owner",
        "_patience",
        "_paused",
        "_quiet",
        "_receiver",
        "_reused",
        "_tracker",
        "_transport",
        "address",
        "state",
        "trust",
    )

    def __init__(self, owner: Owner, address: Address) -> None:
        self._owner = owner
        self.address = address
        self.trust: ssl.SSLContext | None = None  # by which the other side has proved itself
        self.state = _IDLE
        self._transport: asyncio.Transport
        self._receiver: Receiver | None = None
        self._tracker: Tracker = _NO_BODY
        self._buffer = b""
        self._quiet = 0.0
        self._patience = IDLE_SECONDS
        self._paused = False
        self._keep_alive = True
        self._reused = False

    # what the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Switch on TCP keep-alive, which finds dead hosts."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        """Hand bytes on: the hot path, once per streamed chunk."""
        self._quiet = 0.0
        try:
            if self.state is not _BODY:
                data = self._feed_head(data)
            receiver, tracker = self._receiver, self._tracker
            if data and receiver is not None:
                receiver.on_body(data, tracker.feed(data, receiver.payload))
                if tracker.ended and self._receiver is receiver:
                    self._end()
        except FramingError as error:
            self._break("protocol", f"it broke HTTP: {error}")
        except Exception:
            log.exception("an answer of %s:%d could not be taken", *self.address)
            self._break(*_MISREAD)

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange, properly or not."""
        if self.state is _BODY and exc is None and self._tracker.eof():
            self._end()
        else:
            stale = self.state is _HEAD and self._reused and not self._buffer
            if stale:
                self._break("stale", "it closed the pooled connection")
            else:
                self._break("reset", f"the connection broke: {exc or 'closed'}")
        self._owner.forget(self)

    # what the pool and receivers ask for

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent."""
        return self.state is _IDLE and not self._transport.is_closing()

    def take(self) -> bool:
        """Take the connection out of its rest; False if it is of no use."""
        self._reused = True
        return self.is_open

    def send(self, receiver: Receiver, parts: list[bytes], patience: float) -> None:
        """Send a request.

        Parameters
        ----------
        receiver : Receiver
            Takes the response, and owns the connection until it is over.
        parts : list of bytes
            Head and body.
        patience : float
            Longest silence, seconds.
        """
        if self.state is not _IDLE:
            raise RuntimeError(f"a request on a connection in state {self.state.value}")
        self.state, self._receiver = _HEAD, receiver
        self._patience, self._quiet, self._buffer = patience, 0.0, b""
        self._transport.writelines(parts)

    def drop(self, receiver: Receiver) -> None:
        """End an exchange that is not over: the receiver wants no more of it."""
        if self._receiver is receiver:
            self._receiver = None
            self._close()

    def give_back(self) -> None:
        """Return to the pool a connection that was taken and never used."""
        if self.is_open:
            self._owner.put(self)

    def pause(self, receiver: Receiver) -> None:
        """Stop reading: the client does not keep up."""
        if self._receiver is receiver and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self, receiver: Receiver) -> None:
        """Read on."""
        if self._receiver is receiver:
            self._read_on()

    def age(self, elapsed: float) -> None:
        """Count silence."""
        self._quiet += elapsed

    def expire(self) -> None:
        """End what has been silent for too long."""
        if self._quiet <= self._patience:
            return
        if self.state is _IDLE:
            self._close()
        elif self._paused:
            self._break("client_stalled", f"the client read nothing for {self._patience:g} s")
        else:
            self._break("timeout", f"it was silent for {self._patience:g} s")

    def abandon(self, patience: float) -> None:
        """End an exchange that was silent for so long, but for slow clients."""
        if self._quiet > patience and not self._paused:
            self._break("timeout", f"it accepts no connections, and was silent for {patience:g} s")

    def close(self) -> None:
        """Cut the connection, whatever happens on it."""
        self._break("reset", "the router is stopping")

    # inside

    def _feed_head(self, data: bytes) -> bytes:
        """Return what follows the head; nothing while it is not complete."""
        if self.state is not _HEAD:
            self._close()  # bytes without a request
            return b""
        data = self._buffer + data if self._buffer else data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = parse_head(data[:end])
            data = data[end + 4 :]
            if head.status == 101:
                raise FramingError("switching protocols was not asked for")
            if head.status >= 200:
                return self._begin(head, data)
        self._buffer = data
        if len(data) > _MAX_HEAD:
            raise FramingError("a response head is longer than 64 KiB")
        return b""

    def _begin(self, head: ResponseHead, data: bytes) -> bytes:
        receiver = self._receiver
        assert receiver is not None  # noqa: S101 - the state says so
        self._buffer = b""
        self.state, self._tracker, self._keep_alive = _BODY, head.body, head.keep_alive
        receiver.on_head(head)
        if self._receiver is not receiver:
            return b""  # it has seen enough
        if self._tracker.ended:
            if data:
                raise FramingError(f"{len(data)} bytes after a response without a body")
            self._end()
        return data

    def _end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if self._keep_alive and not self._transport.is_closing():
            self._read_on()
            self.state = _IDLE
            self._patience, self._quiet = IDLE_SECONDS, 0.0
            self._owner.put(self)
        else:
            self._close()
        if receiver is not None:
            try:
                receiver.on_end()
            except Exception:
                # the connection serves other requests by now: whoever took the answer must learn it another way
                log.exception("an answer of %s:%d could not be taken", *self.address)
                receiver.on_broken(BrokenError(*_MISREAD))

    def _break(self, cause: str, message: str) -> None:
        receiver, self._receiver = self._receiver, None
        self._close()
        if receiver is not None:
            receiver.on_broken(BrokenError(cause, message))

    def _close(self) -> None:
        self.state = _CLOSED
        self._transport.abort()

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            self._quiet = 0.0
            if not self._transport.is_closing():
                self._transport.resume_reading()

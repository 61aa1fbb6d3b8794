"""One connection to an engine, and the two ways in which an exchange on it fails."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from eldr_router.http.framing import FramingError

IDLE_SECONDS = 3.0
"""Engines (uvicorn) close idle connections after 5 s; ours go first, so that a request rarely meets a closed one."""
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


class ConnectError(Exception):
    """The engine did not accept a connection: it cannot have seen the request."""


class BrokenError(Exception):
    """An exchange failed after the request may have been seen; ``cause`` is a bounded metric label."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Sink(Protocol):
    """What takes a response's bytes."""

    def feed(self, data: bytes) -> bool:
        """Take bytes; True when the response has ended. May raise FramingError."""

    def eof(self) -> bool:
        """Tell whether the connection's end is a proper end of the response."""

    def finish(self, error: BrokenError | None) -> None:
        """Take note that nothing more comes: the end, or the failure."""


class Owner(Protocol):
    """What keeps connections between exchanges."""

    def put(self, connection: Connection) -> None:
        """Take a connection back after a clean exchange."""

    def forget(self, connection: Connection) -> None:
        """Drop a connection that was lost."""


class Connection(asyncio.Protocol):
    """One connection; between exchanges it rests in its pool."""

    __slots__ = ("_owner", "address", "keep_alive", "patience", "paused", "quiet", "sink", "transport")

    def __init__(self, owner: Owner, address: tuple[str, int]) -> None:
        self._owner = owner
        self.address = address
        self.transport: asyncio.Transport
        self.sink: Sink | None = None
        self.quiet = 0.0
        self.patience = IDLE_SECONDS
        self.paused = False
        self.keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Switch on TCP keep-alive, which finds dead hosts behind silent responses."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        raw: socket.socket | None = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the exchange: the hot path, once per streamed chunk."""
        self.quiet = 0.0
        sink = self.sink
        if sink is None:
            self.transport.abort()  # bytes that nobody asked for
            return
        try:
            if sink.feed(data):
                self.settle(None)
        except FramingError as error:
            self.settle(BrokenError("protocol", f"the engine broke HTTP: {error}"))
        except RuntimeError:
            # uvloop refuses writes to the client's closed transport; that client's flow is about to be cancelled.
            self.transport.abort()

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange, properly or not."""
        self._owner.forget(self)
        sink = self.sink
        if sink is not None:
            self.settle(
                None if sink.eof() else BrokenError("reset", f"the connection broke: {exc or 'closed'}")
            )

    def settle(self, error: BrokenError | None) -> None:
        """End the current exchange; keep the connection only after a clean end."""
        sink, self.sink = self.sink, None
        if error is None and self.keep_alive and not self.transport.is_closing():
            self.resume()
            self._owner.put(self)
        else:
            self.transport.abort()
        if sink is not None:
            sink.finish(error)

    def pause(self) -> None:
        """Stop reading: the client does not keep up."""
        if not self.paused and not self.transport.is_closing():
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            self.quiet = 0.0
            if not self.transport.is_closing():
                self.transport.resume_reading()

"""Client connections: one response at a time, keep-alive, back pressure, disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from eldr_router.http.errors import RouterError, error_body
from eldr_router.http.head import Headers, write_head
from eldr_router.http.requests import Request, RequestReader

log = logging.getLogger(__name__)

_BACKLOG = 1 << 16
_IDLE_SECONDS = 75.0
_RECEIVE_SECONDS = 120.0
_LINGER_SECONDS = 2.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = (b"content-type", b"application/json")

Handler = Callable[[Request, "Client"], Awaitable[None]]


@dataclass(slots=True)
class Server:
    """What all connections of one port share.

    Attributes
    ----------
    handler : callable
        Answers one request.
    max_body : int
        Bytes; beyond it 413.
    draining : bool
        Answers say ``connection: close``.
    """

    handler: Handler
    loop: asyncio.AbstractEventLoop
    max_body: int
    draining: bool = False
    clients: set[Client] = field(default_factory=set)

    def protocol(self) -> Client:
        """Return the protocol of a new connection."""
        return Client(self)

    def sweep(self) -> None:
        """Close connections that are idle, or whose request does not arrive."""
        for client in tuple(self.clients):
            client.sweep(self.loop.time())

    def close_idle(self) -> None:
        """Close connections without a request."""
        for client in tuple(self.clients):
            if not client.busy:
                client.close()

    def abort(self) -> None:
        """Cut every connection."""
        for client in tuple(self.clients):
            client.abort()

    @property
    def busy(self) -> int:
        """Connections with a request in progress."""
        return sum(client.busy for client in self.clients)


class Client(asyncio.Protocol):
    """One client connection. Requests of a pipeline are answered in order, one at a time.

    Attributes
    ----------
    on_pause, on_resume : callable or None
        Called when the client stops reading, and when it reads again.
    can_write : asyncio.Event
        The same as a condition.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = RequestReader(server.max_body)
        self._backlog = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._since = server.loop.time()
        self._lingering = False
        self._started = self._complete = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of a connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._server.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Abort the request in progress, and with it both legs upstream."""
        self._server.clients.discard(self)
        self.can_write.set()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> None:
        """Treat the end of the client's bytes as a disconnect."""
        self._transport.abort() if self.busy else self._transport.close()

    def pause_writing(self) -> None:
        """Stop the engine while the client does not read."""
        self.can_write.clear()
        if self.on_pause is not None:
            self.on_pause()

    def resume_writing(self) -> None:
        """Let the engine go on."""
        self.can_write.set()
        if self.on_resume is not None:
            self.on_resume()

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later while a request is in progress."""
        if self._reader.deaf:
            return
        if self.busy:
            self._backlog += data
            if len(self._backlog) > _BACKLOG:
                self._transport.pause_reading()
            return
        self._read(data)

    def _read(self, data: bytes) -> None:
        if not self._reader.receiving:
            self._since = self._server.loop.time()
        self._reader.feed(data)
        self._next()

    def _next(self) -> None:
        if self._reader.queue:
            item = self._reader.queue.popleft()
            self._started = self._complete = False
            if isinstance(item, RouterError):
                self._request = None
                self.respond_error(item)
                self._linger()
                return
            self._request = item
            self._task = self._server.loop.create_task(self._handle(item))
            self._task.add_done_callback(self._done)
        elif self._reader.continue_due:
            self._reader.continue_due = False
            self._transport.write(_CONTINUE)

    async def _handle(self, request: Request) -> None:
        try:
            await self._server.handler(request, self)
        except RouterError as error:
            self.respond_error(error)
        except Exception:
            log.exception("a request failed inside the router")
            self.respond_error(RouterError(500, "internal error of the router", "internal"))

    def _done(self, task: asyncio.Task[None]) -> None:  # noqa: ARG002
        self._task = None
        self.on_pause = self.on_resume = None
        if self._transport.is_closing():
            return
        if not self._complete:
            self.abort()
            return
        if not self.keep_alive:
            self._transport.close()
            return
        self._since = self._server.loop.time()
        if self._reader.queue or not self._backlog:
            self._next()
            return
        data, self._backlog = bytes(self._backlog), bytearray()
        if len(data) > _BACKLOG:
            self._transport.resume_reading()
        self._read(data)

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return self._task is not None

    @property
    def keep_alive(self) -> bool:
        """Whether the connection goes on after this response."""
        request = self._request
        return request is not None and request.keep_alive and not request.http10 and not self._server.draining

    def head(self, status: int, headers: Headers) -> bytes:
        """Return a response head that says how this connection goes on."""
        if not self.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        return write_head(status, headers)

    def begin(self, *, close: bool = False) -> Callable[[bytes], None]:
        """Start a response by hand: return what writes it; :meth:`end` it.

        With ``close`` the connection's end is the end of the response.
        """
        if close and self._request is not None:
            self._request.keep_alive = False
        self._started = True
        return self._transport.write

    def end(self) -> None:
        """End a response that was begun."""
        self._complete = True

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole response."""
        head = self.head(status, [*headers, (b"content-length", b"%d" % len(body))])
        is_head = self._request is not None and self._request.method == "HEAD"
        self.begin()(head if is_head else head + body)
        self.end()

    def respond_error(self, error: RouterError, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Write an error response, or cut one that has begun."""
        if self._started:
            self.abort()
            return
        headers = [JSON, *headers]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        self.respond(error.status, headers, error_body(error.message, error.status, error.code, error.param))

    def _linger(self) -> None:
        """Close after an early refusal: read on for a moment, or the client's unread bytes destroy the answer."""
        self._lingering = True
        self._since = self._server.loop.time()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def sweep(self, now: float) -> None:
        """Close the connection if it has waited too long."""
        if self.busy:
            return
        waiting = _RECEIVE_SECONDS if self._reader.receiving else _IDLE_SECONDS
        if now - self._since > (_LINGER_SECONDS if self._lingering else waiting):
            self.close()

    def close(self) -> None:
        """Close after what is written has gone out."""
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

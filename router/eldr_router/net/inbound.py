r"""Client connections.

A connection is an explicit state machine::

    IDLE <----> RECEIVING ---> WORKING ---> RESPONDING ---> IDLE
                    \_ refused ________________\_ last __> CLOSING ---> CLOSED

Requests of a pipeline wait until the answer before them has been read by the client, so that no client can make the router
hold more answers than one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers, write_head
from eldr_router.http.requests import Budget, Check, Request, RequestReader
from eldr_router.net.work import TaskWork, Work

log = logging.getLogger(__name__)

_BACKLOG = 1 << 16
_UNREAD_SECONDS = 75.0
"""Of a client that does not read its last answer."""
_SILENT_SECONDS = 60.0
"""Of a client in the middle of a request."""
_LONG_SECONDS = 120.0
"""Of an upload; longer ones give way where memory is short."""
_LINGER_SECONDS = 2.0
_PROBE_SECONDS = 0.1
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class State(Enum):
    """Where a connection stands."""

    IDLE = "idle"
    RECEIVING = "receiving"
    WORKING = "working"
    RESPONDING = "responding"
    CLOSING = "closing"
    CLOSED = "closed"


# an enum's attributes cost five times a name's
_IDLE, _RECEIVING, _WORKING, _RESPONDING, _CLOSING, _CLOSED = State
Handler = Callable[[Request, "ClientConnection"], None]
"""Answers a request at once, or attaches the work that will."""


@dataclass(slots=True)
class Server:
    """What all connections of one port share.

    Attributes
    ----------
    max_body : int
        Bytes; beyond it 413.
    budget : Budget
        Memory for all request bodies.
    max_connections : int
        Beyond so many a new one is answered with 503: without a file descriptor to an engine nothing could be done for it.
    idle_timeout : float
        Seconds without a request after which a connection is closed. It should exceed what proxies in front keep theirs:
        one that they use again in the moment of its end makes a 502.
    max_refused : int
        Of those, so many at a time; the others are cut, as each holds a descriptor until its client has read the answer.
    check : callable, optional
        Returns why a request is refused before its body is read.
    draining : bool
        Answers say ``connection: close``.
    handshakes : set of asyncio.Task
        Of clients that have not agreed on TLS yet.
    """

    handler: Handler
    loop: asyncio.AbstractEventLoop
    max_body: int
    budget: Budget
    max_connections: int = 1 << 20
    max_refused: int = 1 << 20
    idle_timeout: float = 75.0
    check: Check | None = None
    draining: bool = False
    connections: set[ClientConnection] = field(default_factory=set)
    handshakes: set[asyncio.Task[None]] = field(default_factory=set)

    def protocol(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    def sweep(self) -> None:
        """Look after connections that wait."""
        now, short = self.loop.time(), self.budget.fell_short
        self.budget.fell_short = False
        for connection in tuple(self.connections):
            connection.sweep(now, short=short)

    def close_idle(self) -> None:
        """Close connections without a request; one that is arriving is waited for."""
        for connection in tuple(self.connections):
            if connection.state is _IDLE:
                connection.close()

    def abort(self) -> None:
        """Cut every connection."""
        for handshake in tuple(self.handshakes):
            handshake.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    @property
    def busy(self) -> int:
        """Connections with a request in progress or arriving."""
        return sum(connection.busy for connection in self.connections)


class ClientConnection(asyncio.Protocol):
    """One client connection; requests of a pipeline are answered in order.

    Attributes
    ----------
    state : State
    can_write : bool
        Whether the client keeps up.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = RequestReader(server.max_body, server.budget, server.check)
        self._transport: asyncio.Transport
        self._backlog = bytearray()
        self._request: Request | None = None
        self._work: Work | None = None
        self._since = self._begun = server.loop.time()
        self._unread = 0
        self._half_closed = False
        self._advancing = False
        self._waiter: asyncio.Future[None] | None = None
        self.state = _IDLE
        self._was_used = False
        self.can_write = True

    # what the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection, or turn it away."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._server.connections.add(self)
        beyond = len(self._server.connections) - self._server.max_connections
        connections = self._server.connections if beyond > 0 else ()
        if resting := [one for one in connections if one.state is _IDLE and one._was_used]:  # noqa: SLF001 - of the same class
            min(resting, key=lambda one: one._since).close()  # noqa: SLF001
        elif beyond > self._server.max_refused:
            self.abort()
        elif beyond > 0:
            self._refuse(
                RouterError(503, "too many connections; retry later", "connections_full", retry_after=1)
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Abort the request in progress, and with it both legs upstream."""
        self._server.connections.discard(self)
        self.state = _CLOSED
        self._reader.close()
        self._drop_request()
        self._give_unread()
        self._wake()
        work, self._work = self._work, None
        if work is not None:
            work.gone()

    def eof_received(self) -> bool:
        """Find out whether the client is gone, or has only said all it has to say.

        Both look the same. A client that closed its half did so after its request, and ignores interim responses, as
        every client of HTTP/1.1 must (RFC 9110, section 15.2); one that is gone answers them with a reset, which the
        next write meets. Whoever ends its side in the middle of a response has left.
        """
        if self.state is not _WORKING and not self._has_more:
            if self.state is _RESPONDING and not self._half_closed:
                self.abort()
            return False
        self._half_closed = True
        self._probe()
        self._server.loop.call_later(_PROBE_SECONDS, self._probe)
        return True

    def pause_writing(self) -> None:
        """Stop the engine while the client does not read."""
        self.can_write = False
        if self._work is not None:
            self._work.pause()

    def resume_writing(self) -> None:
        """Let the engine go on, or the next request."""
        self.can_write = True
        self._give_unread()
        self._wake()
        if self._work is not None:
            self._work.resume()
        self._advance()

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later while a request is in progress."""
        if self._reader.deaf:
            return
        if self.state in (_IDLE, _RECEIVING) and self.can_write:
            self._read(data)
            return
        self._backlog += data
        if len(self._backlog) > _BACKLOG:
            self._transport.pause_reading()

    # what handlers do

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Answer the request by a coroutine, cancelled if the client leaves."""
        self.attach(TaskWork(self, coroutine))

    def attach(self, work: Work) -> None:
        """Let ``work`` know when the client leaves, and whether it keeps up."""
        self._work = work

    @property
    def keep_alive(self) -> bool:
        """Whether the connection goes on after this response."""
        request = self._request
        return (
            request is not None
            and request.keep_alive
            and not (request.http10 or self._server.draining)
            and (not self._half_closed or self._has_more)
        )

    @property
    def _has_more(self) -> bool:
        """Whether requests of a pipeline wait."""
        return bool(self._reader.queue or self._backlog)

    def head(self, status: int, headers: Headers) -> bytes:
        """Return a response head that says how this connection goes on."""
        if not self.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        return write_head(status, headers)

    def begin(self, status: int, headers: Headers, *, close: bool = False) -> None:
        """Write a response head; :meth:`write` what follows and :meth:`end` it.

        With ``close`` the connection's end is the end of the response.
        """
        if close and self._request is not None:
            self._request.keep_alive = False
        self.begin_raw(self.head(status, headers))

    def begin_raw(self, data: bytes) -> None:
        """Write a head made by :meth:`head`, and what is there of the body."""
        if self.state is _WORKING:
            self.state = _RESPONDING
            self.write(data)

    def write(self, data: bytes) -> None:
        """Write bytes of the response: the hot path."""
        if self.state is _RESPONDING and not self._transport.is_closing():
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the client keeps up, or is gone."""
        while not self.can_write and self.state is not _CLOSED:
            self._waiter = self._server.loop.create_future()
            await self._waiter

    def end(self) -> None:
        """End the response."""
        if self.state is not _RESPONDING:
            return
        keep_alive, has_more = self.keep_alive, self._has_more
        self._drop_request()
        self._work = None
        self._since = self._begun = self._server.loop.time()
        if keep_alive:
            self.state, self._was_used = _IDLE, True
            self._advance()
        elif has_more:
            self._linger()
        else:
            self.close()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a whole response."""
        head = self.head(status, [*headers, (b"content-length", b"%d" % len(body))])
        is_head = self._request is not None and self._request.method == "HEAD"
        self.begin_raw(head if is_head else head + body)
        if not self.can_write and not self._unread:  # the transport holds it until the client reads
            self._unread = len(body)
            self._server.budget.owe(self._unread)
        self.end()

    def respond_error(self, error: RouterError, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Write an error response, or cut one that has begun."""
        if self.state is _RESPONDING:
            self.abort()
            return
        own, body = error.answer()
        self.respond(error.status, [*own, *headers], body)

    def fail(self) -> None:
        """Answer for a bug, where its exception is handled."""
        log.exception("a request failed inside the router")  # noqa: LOG004 - callers handle an exception
        self.respond_error(RouterError(500, "internal error of the router", "internal"))

    # time and ends

    @property
    def busy(self) -> bool:
        """Whether a request is in progress, or an answer not sent yet."""
        if self.state in (_RECEIVING, _WORKING, _RESPONDING):
            return True
        return self.state is not _CLOSED and self._transport.get_write_buffer_size() > 0

    def sweep(self, now: float, *, short: bool) -> None:
        """Close the connection if it waited too long; probe silent clients.

        Where memory is ``short``, uploads that take long give theirs back.
        """
        waited = now - self._since
        if self.state is _IDLE and waited > self._server.idle_timeout:
            self.close() if self.can_write else self.abort()
        elif self.state is _RECEIVING and waited > _SILENT_SECONDS:
            self._end_upload(f"nothing of the request came for {_SILENT_SECONDS:g} s; send it again")
        elif self.state is _RECEIVING and short and now - self._begun > _LONG_SECONDS:
            self._end_upload(
                f"memory is short, and the upload takes more than {_LONG_SECONDS:g} s; retry later"
            )
        elif self.state is _CLOSING and waited > _LINGER_SECONDS:
            # what is written may still go out, but not for ever
            self.abort() if waited > _UNREAD_SECONDS else self._transport.close()
        elif self._half_closed or len(self._backlog) > _BACKLOG:
            self._probe()  # where reading is paused nothing shows that the client is gone

    def close(self) -> None:
        """Close after what is written has gone out."""
        if self.state is not _CLOSED:
            self.state = _CLOSING
            self._since = self._server.loop.time()
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    # inside

    def _read(self, data: bytes) -> None:
        self._since = self._server.loop.time()
        if self.state is _IDLE:
            self._begun = self._since
        self._reader.feed(data)
        self._advance()

    def _advance(self) -> None:
        """Answer what has arrived, one request after the other, as far as the client reads."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self.state in (_IDLE, _RECEIVING) and self.can_write:
                if self._reader.queue:
                    self._start(self._reader.queue.popleft())
                elif self._backlog:
                    data, self._backlog = bytes(self._backlog), bytearray()
                    if len(data) > _BACKLOG:
                        self._transport.resume_reading()
                    self._reader.feed(data)
                else:
                    self.state = _RECEIVING if self._reader.receiving else _IDLE
                    if self._half_closed:
                        self.close()  # the rest of this request never comes
                    break
        finally:
            self._advancing = False
        if self._reader.continue_due and self.state is _RECEIVING:
            self._reader.continue_due = False
            self._transport.write(_CONTINUE)

    def _start(self, item: Request | RouterError) -> None:
        if isinstance(item, RouterError):
            self._refuse(item)
            return
        self._request = item
        self.state = _WORKING
        try:
            self._server.handler(item, self)
        except RouterError as error:
            self.respond_error(error)
        except Exception:  # noqa: BLE001 - fail logs it
            self.fail()

    def _refuse(self, error: RouterError) -> None:
        """Answer and close."""
        self._request = None
        self.state = _WORKING
        headers, body = error.answer()
        headers = [*headers, (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
        self._transport.write(write_head(error.status, headers) + body)
        self._linger()

    def _linger(self) -> None:
        """Close, but read on for a moment: unread bytes would destroy the answer."""
        self._reader.close()
        if len(self._backlog) > _BACKLOG:
            self._transport.resume_reading()
        self._backlog = bytearray()
        self.state = _CLOSING
        self._since = self._server.loop.time()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _end_upload(self, why: str) -> None:
        self._refuse(RouterError(408, why, "upload_timeout"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_unread(self) -> None:
        self._server.budget.give(self._unread)
        self._unread = 0

    def _drop_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.drop_body()

    def _probe(self) -> None:
        request = self._request
        open_ = self.state is _WORKING and not self._transport.is_closing()
        if open_ and request is not None and not request.http10:
            self._transport.write(_CONTINUE)

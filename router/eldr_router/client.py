"""The server side of client connections: requests in, one response at a time, limits and disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httptools

from eldr_router.errors import RouterError, error_body
from eldr_router.head import Headers, write_head

log = logging.getLogger(__name__)

_MAX_HEAD = 1 << 16
_MAX_HEADERS = 128
_BACKLOG = 1 << 16
_IDLE_SECONDS = 75.0
_RECEIVE_SECONDS = 120.0
_LINGER_SECONDS = 2.0
JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Request:
    """A complete request; header names in lower case."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    keep_alive: bool
    http10: bool

    def get(self, name: bytes) -> bytes | None:
        """Return a header's value."""
        return next((value for key, value in self.headers if key == name), None)


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
    """One client connection. Requests of a pipeline are answered in order, one at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request | RouterError] = deque()
        self._backlog = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._since = server.loop.time()
        self._deaf = False
        self._lingering = False
        self._continue_due = False
        self._in_head = self._receiving = False
        self._request: Request | None = None
        self._started = self._complete = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.can_write = asyncio.Event()
        self.can_write.set()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of a connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows the type
        self._transport = transport
        self._server.clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Abort the request in progress, and with it both legs upstream."""
        self._server.clients.discard(self)
        self._deaf = True
        self._queue.clear()
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
        if self._deaf:
            return
        if self.busy:
            self._backlog += data
            if len(self._backlog) > _BACKLOG:
                self._transport.pause_reading()
            return
        self._parse(data)

    # the parser's side

    def _parse(self, data: bytes) -> None:
        if self._in_head:
            self._head_read += len(data)  # the parser hides a header until it is complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(RouterError(400, "protocol upgrades are not supported", "invalid_http"))
        except httptools.HttpParserError as error:
            self._refuse(RouterError(400, f"not HTTP/1.1: {error}", "invalid_http"))
        if self._in_head and self._head_read > _MAX_HEAD:
            self._refuse(
                RouterError(431, f"the request head is longer than {_MAX_HEAD} bytes", "head_too_large")
            )
        self._next()

    def _refuse(self, error: RouterError) -> None:
        if not self._deaf:
            self._deaf = True
            self._queue.append(error)

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._head_size = self._head_read = self._body_size = 0
        self._in_head = self._receiving = True
        self._since = self._server.loop.time()

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, within limits."""
        self._head_size += len(name) + len(value) + 4
        if self._head_size > _MAX_HEAD or len(self._headers) >= _MAX_HEADERS:
            limits = f"{_MAX_HEADERS} headers and {_MAX_HEAD} bytes"
            self._refuse(RouterError(431, f"the request head exceeds {limits}", "head_too_large"))
        else:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the framing and answer ``Expect: 100-continue``."""
        self._in_head = False
        if self._deaf:
            return
        length = encoding = expect = None
        for name, value in self._headers:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                encoding = value if encoding is None else encoding + b"," + value
            elif name == b"expect":
                expect = value.lower()
        version = self._parser.get_http_version()
        if encoding is not None and (
            length is not None or encoding.strip().lower() != b"chunked" or version == "1.0"
        ):
            self._refuse(
                RouterError(400, f"transfer-encoding: {encoding[:40]!r} is not accepted", "invalid_http")
            )
        elif version not in ("1.0", "1.1"):
            self._refuse(RouterError(505, f"HTTP/{version} is not supported", "invalid_http"))
        elif length is not None and int(length) > self._server.max_body:
            self._too_large()
        elif expect == b"100-continue" and version == "1.1":
            if self.busy or self._queue:
                self._continue_due = True
            else:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif expect is not None:
            self._refuse(RouterError(417, f"expect: {expect[:40]!r} is not supported", "invalid_http"))

    def on_body(self, data: bytes) -> None:
        """Collect the body, within the limit."""
        self._body_size += len(data)
        if self._body_size > self._server.max_body:
            self._too_large()
        if not self._deaf:
            self._body.append(data)

    def _too_large(self) -> None:
        self._body.clear()
        limit = self._server.max_body
        self._refuse(RouterError(413, f"the request body is longer than {limit} bytes", "body_too_large"))

    def on_message_complete(self) -> None:
        """Queue a complete request."""
        self._receiving = False
        if self._deaf:
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        keep_alive = self._parser.should_keep_alive()
        http10 = self._parser.get_http_version() == "1.0"
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode("latin-1")
        self._queue.append(Request(method, path, query, self._headers, body, keep_alive, http10))
        self._deaf = not keep_alive

    # one request after the other

    def _next(self) -> None:
        if self.busy or not self._queue:
            return
        item = self._queue.popleft()
        self._started = self._complete = False
        if isinstance(item, RouterError):
            self._request = None
            self.respond_error(item)
            self._linger()
            return
        self._request = item
        self._task = self._server.loop.create_task(self._handle(item))
        self._task.add_done_callback(self._done)

    async def _handle(self, request: Request) -> None:
        try:
            await self._server.handler(request, self)
        except RouterError as error:
            self.respond_error(error)
        except Exception:
            log.exception("a request failed inside the router")
            if self._started:
                self.abort()
            else:
                self.respond(500, [JSON], error_body("internal error of the router", 500, "internal"))

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
        if self._queue:
            self._next()
            return
        if self._continue_due:
            self._continue_due = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        data, self._backlog = bytes(self._backlog), bytearray()
        if len(data) > _BACKLOG:
            self._transport.resume_reading()
        if data:
            self._parse(data)

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return self._task is not None

    @property
    def keep_alive(self) -> bool:
        """Whether the connection goes on after this response."""
        request = self._request
        return request is not None and request.keep_alive and not request.http10 and not self._server.draining

    # the handler's side

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
        self.respond(error.status, headers, error.body())

    # ends

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
        limit = _LINGER_SECONDS if self._lingering else _RECEIVE_SECONDS if self._receiving else _IDLE_SECONDS
        if now - self._since > limit:
            self.close()

    def close(self) -> None:
        """Close after what is written has gone out."""
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

"""Connections to engines: pooled, one exchange at a time, framed exactly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from eldr_router.framing import Body, FramingError
from eldr_router.head import ResponseHead, parse_head

_MAX_HEAD = 1 << 16
_IDLE_SECONDS = 3.0
"""Engines (uvicorn) close idle connections after 5 s; ours go first, so that a request rarely meets a closed one."""
_MAX_IDLE = 256
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


class Connection(asyncio.Protocol):
    """One connection; between exchanges it rests in its pool."""

    __slots__ = ("address", "keep_alive", "patience", "paused", "pool", "quiet", "sink", "transport")

    def __init__(self, pool: Pool, address: tuple[str, int]) -> None:
        self.pool = pool
        self.address = address
        self.transport: asyncio.Transport
        self.sink: Sink | None = None
        self.quiet = 0.0
        self.patience = _IDLE_SECONDS
        self.paused = False
        self.keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Switch on TCP keep-alive, which finds dead hosts behind silent responses."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows the type
        self.transport = transport
        raw: socket.socket | None = transport.get_extra_info("socket")
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

    def eof_received(self) -> None:
        """Let the transport close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange, properly or not."""
        self.pool.forget(self)
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
            self.pool.put(self)
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


class _Head:
    """Sink of the response head; bytes behind it wait for the next sink."""

    __slots__ = ("buffer", "early", "head", "waiter")

    def __init__(self, waiter: asyncio.Future[ResponseHead]) -> None:
        self.waiter = waiter
        self.buffer = b""
        self.head: ResponseHead | None = None
        self.early: list[bytes] = []

    def feed(self, data: bytes) -> bool:
        if self.head is not None:
            self.early.append(data)
            return False
        data = self.buffer + data if self.buffer else data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = parse_head(data[:end])
            data = data[end + 4 :]
            if head.status == 101:
                raise FramingError("switching protocols was not asked for")
            if head.status >= 200:
                self.head = head
                if data:
                    self.early.append(data)
                if not self.waiter.done():
                    self.waiter.set_result(head)
                return False
        self.buffer = data
        if len(data) > _MAX_HEAD:
            raise FramingError("a response head is longer than 64 KiB")
        return False

    def eof(self) -> bool:
        return False

    def finish(self, error: BrokenError | None) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(error or BrokenError("reset", "the connection closed"))


class Collector:
    """Sink of a whole body."""

    __slots__ = ("_body", "_limit", "_parts", "_size", "waiter")

    def __init__(self, body: Body, limit: int, waiter: asyncio.Future[bytes]) -> None:
        self._body = body
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.waiter = waiter

    def feed(self, data: bytes) -> bool:
        """Take bytes; see :class:`Sink`."""
        self._size += len(data)
        if self._size > self._limit:
            raise FramingError(f"a response is longer than {self._limit} bytes")
        self._body.feed(data, self._parts)
        return self._body.ended

    def eof(self) -> bool:
        """See :class:`Sink`."""
        return self._body.eof()

    def finish(self, error: BrokenError | None) -> None:
        """See :class:`Sink`."""
        if self.waiter.done():
            return
        if error is not None:
            self.waiter.set_exception(error)
        else:
            self.waiter.set_result(b"".join(self._parts))


class Exchange:
    """One request and its response; a context manager that aborts what is not finished.

    Attributes
    ----------
    reused : bool
        Whether the connection served another exchange before: a reset then proves nothing about the engine.
    """

    __slots__ = ("_connection", "_head", "_sent", "reused")

    def __init__(self, connection: Connection, *, reused: bool) -> None:
        self._connection: Connection | None = connection
        self._head: _Head | None = None
        self._sent = False
        self.reused = reused

    def _open(self) -> Connection:
        if self._connection is None:
            raise BrokenError("reset", "the exchange is over")
        return self._connection

    async def send(self, request: bytes, patience: float) -> ResponseHead:
        """Send a request and wait for the response head.

        Parameters
        ----------
        request : bytes
            Head and body.
        patience : float
            Longest silence of the engine, here and in the body, seconds.

        Raises
        ------
        BrokenError
            If the connection breaks, stays silent or talks nonsense.
        """
        connection = self._open()
        head = self._head = _Head(connection.pool.loop.create_future())
        connection.sink, connection.patience, connection.quiet = head, patience, 0.0
        self._sent = True
        connection.transport.write(request)
        try:
            found = await head.waiter
        except BrokenError as error:
            if error.cause == "reset" and self.reused and not head.buffer:
                raise BrokenError("stale", "a pooled connection was closed by the engine") from None
            raise
        connection.keep_alive = found.keep_alive
        return found

    def attach(self, sink: Sink, body: Body) -> None:
        """Send the body's bytes to ``sink``, those that are here already first."""
        connection, head = self._open(), self._head
        assert head is not None  # noqa: S101 - send comes first
        if connection.sink is not head:  # the connection broke since the head came
            sink.finish(None if body.ended else BrokenError("reset", "the connection broke"))
            return
        connection.sink = sink
        if body.ended:
            connection.settle(None)
            return
        for data in head.early:
            if connection.sink is sink:
                connection.data_received(data)

    async def collect(self, body: Body, limit: int) -> bytes:
        """Read the whole body."""
        collector = Collector(body, limit, self._open().pool.loop.create_future())
        self.attach(collector, body)
        return await collector.waiter

    def pause(self) -> None:
        """Stop reading until :meth:`resume`."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None:
            self._connection.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not self._sent:
            connection.settle(None)
        elif connection.sink is not None and connection.pool.owner(connection) is self:
            connection.sink = None
            connection.transport.abort()


class Pool:
    """Idle and busy connections to all engines.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    connect_timeout : float
        Seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_timeout: float) -> None:
        self.loop = loop
        self._connect_timeout = connect_timeout
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._all: set[Connection] = set()
        self._owners: dict[Connection, Exchange] = {}

    def __len__(self) -> int:
        return len(self._all)

    def owner(self, connection: Connection) -> Exchange | None:
        """Return the exchange that uses a connection now."""
        return self._owners.get(connection)

    async def open(self, host: str, port: int) -> Exchange:
        """Return an exchange on an idle or a new connection.

        Raises
        ------
        ConnectError
            If the engine does not accept a connection in time.
        """
        address = (host, port)
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return self._own(connection, reused=True)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self, address), host, port
                )
        except TimeoutError:
            raise ConnectError(
                f"{host}:{port} did not accept a connection in {self._connect_timeout:g} s"
            ) from None
        except OSError as error:
            raise ConnectError(f"{host}:{port}: {error}") from None
        self._all.add(connection)
        return self._own(connection, reused=False)

    def _own(self, connection: Connection, *, reused: bool) -> Exchange:
        exchange = Exchange(connection, reused=reused)
        self._owners[connection] = exchange
        return exchange

    def put(self, connection: Connection) -> None:
        """Take a connection back after a clean exchange."""
        self._owners.pop(connection, None)
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) >= _MAX_IDLE:
            connection.transport.close()
            return
        connection.quiet, connection.patience = 0.0, _IDLE_SECONDS
        idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that was lost."""
        self._all.discard(connection)
        self._owners.pop(connection, None)
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)
        if not idle:
            self._idle.pop(connection.address, None)

    def sweep(self, elapsed: float) -> None:
        """Count silence on every connection; end those that were silent too long. Called about once a second."""
        for connection in list(self._all):
            connection.quiet += elapsed
            if connection.quiet <= connection.patience:
                continue
            if connection.sink is None:
                self.forget(connection)
                connection.transport.close()
            else:
                who = "client_stalled" if connection.paused else "timeout"
                connection.settle(BrokenError(who, f"no progress for {connection.patience:g} s"))

    def close(self) -> None:
        """Abort everything."""
        for connection in list(self._all):
            connection.transport.abort()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._all))

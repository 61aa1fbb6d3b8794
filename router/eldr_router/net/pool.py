"""Exchanges with engines over pooled connections, framed exactly."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from eldr_router.http.framing import Body, FramingError
from eldr_router.http.head import ResponseHead, parse_head
from eldr_router.net.connection import IDLE_SECONDS, BrokenError, ConnectError, Connection, Sink

_MAX_HEAD = 1 << 16
_MAX_IDLE = 256


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

    __slots__ = ("_connection", "_head", "_pool", "_sent", "reused")

    def __init__(self, pool: Pool, connection: Connection, *, reused: bool) -> None:
        self._pool = pool
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
        head = self._head = _Head(self._pool.loop.create_future())
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
        collector = Collector(body, limit, self._pool.loop.create_future())
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
        elif connection.sink is not None and self._pool.owner(connection) is self:
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
        exchange = Exchange(self, connection, reused=reused)
        self._owners[connection] = exchange
        return exchange

    def put(self, connection: Connection) -> None:
        """Take a connection back after a clean exchange."""
        self._owners.pop(connection, None)
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) >= _MAX_IDLE:
            connection.transport.close()
            return
        connection.quiet, connection.patience = 0.0, IDLE_SECONDS
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

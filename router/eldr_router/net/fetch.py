"""One request and its whole answer, not streamed to a client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from eldr.addresses import Address, authority
from eldr_router.http.head import Headers, ResponseHead, write_request
from eldr_router.net.outbound import BrokenError
from eldr_router.net.pool import Pool


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        """The response's status."""
        return self.head.status


class Gatherer:
    """A receiver that keeps the whole body."""

    __slots__ = ("_head", "_limit", "_size", "payload", "waiter")

    def __init__(self, limit: int, waiter: asyncio.Future[Answer]) -> None:
        self._limit = limit
        self._size = 0
        self._head: ResponseHead | None = None
        self.payload: list[bytes] | None = []
        self.waiter = waiter

    def on_head(self, head: ResponseHead) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self._head = head

    def on_body(self, data: bytes, boundary: int) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        del boundary
        self._size += len(data)
        if self._size > self._limit and not self.waiter.done():
            self.waiter.set_exception(BrokenError("protocol", f"its answer exceeds {self._limit} bytes"))

    def on_end(self) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        if not self.waiter.done() and self._head is not None:
            self.waiter.set_result(Answer(self._head, b"".join(self.payload or ())))

    def on_broken(self, error: BrokenError) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        if not self.waiter.done():
            self.waiter.set_exception(error)


async def fetch(
    pool: Pool,
    address: Address,
    target: str,
    *,
    method: str = "GET",
    headers: Headers | None = None,
    body: bytes = b"",
    patience: float,
    limit: int = 1 << 20,
    fresh: bool = False,
) -> Answer:
    """Send a request and return the whole answer.

    Parameters
    ----------
    pool : Pool
    address : (str, int)
    target : str
        Path and query.
    method : str
    headers : list of (bytes, bytes), optional
        Without host and content-length.
    body : bytes
    patience : float
        Longest silence, seconds.
    limit : int
        Bytes of the answer.
    fresh : bool
        Open a connection for this request alone: the answer then proves that the other side accepts connections.

    Raises
    ------
    ConnectError
        If the other side does not accept a connection.
    BrokenError
        If the connection breaks, stays silent, talks nonsense or too much.
    """
    gatherer = Gatherer(limit, pool.loop.create_future())
    connection = (None if fresh else pool.idle(address)) or await pool.dial(address)
    all_headers = list(headers or ())
    if fresh:
        all_headers.append((b"connection", b"close"))
    if body or method == "POST":
        all_headers.append((b"content-length", b"%d" % len(body)))
    head = write_request(method, target, authority(*address), all_headers)
    connection.send(gatherer, [head, body] if body else [head], patience)
    try:
        return await gatherer.waiter
    finally:
        connection.drop(gatherer)

"""A leg of a request, and the first leg.

They turn an engine's response into events of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from eldr.contract import ELDR_KEY, KV_KEY
from eldr_router.api.answers import object_of, prompt_tokens
from eldr_router.engines.endpoint import Endpoint, Occupancy
from eldr_router.engines.load import load_of
from eldr_router.flow.vocabulary import Answered, Broken, ConnectFailed, Event, Exhausted
from eldr_router.http.head import ResponseHead
from eldr_router.net.outbound import BrokenError, ConnectError, EngineConnection
from eldr_router.net.pool import Pool
from eldr_router.placement.signature import NO_SIGNATURE, Signature, read_signature

_MAX_ANSWER = 256 << 20


class Flow(Protocol):
    """The request that a leg belongs to."""

    def handle(self, event: Event) -> None:
        """Take an event."""

    def prefilled(
        self, leg: PrefillLeg, kv: dict[str, Any] | None, signature: Signature, prompt: int, model: object
    ) -> None:
        """Take a prefill's result.

        What it handed over, the tokens of the prompt (0 if it does not report them), and the model that it names.
        """

    def now(self) -> float:
        """Monotonic seconds."""

    def write(self, data: bytes) -> None:
        """Write to the client."""


class Leg:
    """One exchange with one engine, its connection and its load.

    Parameters
    ----------
    flow : Flow
    pool : Pool
    endpoint : Endpoint
    occupancy : Occupancy
        Given back by :meth:`leave`.
    """

    __slots__ = (
        "_connection",
        "_dial",
        "_flow",
        "_left",
        "_occupancy",
        "_pool",
        "_sent",
        "_size",
        "body",
        "endpoint",
        "head",
        "payload",
        "reports",
    )

    def __init__(self, flow: Flow, pool: Pool, endpoint: Endpoint, occupancy: Occupancy) -> None:
        self._flow = flow
        self._pool = pool
        self._occupancy = occupancy
        self._connection: EngineConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._left = self._sent = False
        self._size = 0
        self.endpoint = endpoint
        self.head: ResponseHead | None = None
        self.payload: list[bytes] | None = []
        self.body = b""
        self.reports = False  # with this answer: then it has the plug-in, which keeps the deadlines of pulls

    def connect(self) -> None:
        """Get a connection: at once if one rests in the pool."""
        self._connection = self._pool.idle(self.endpoint.address)
        if self._connection is not None:
            self.on_connected()
        else:
            self._dial = self._pool.loop.create_task(self._dialled())

    async def _dialled(self) -> None:
        try:
            self._connection = await self._pool.dial(self.endpoint.address)
        except ConnectError as error:
            event = Exhausted if error.own else ConnectFailed
            self._flow.handle(event(self.endpoint, str(error)))
            return
        finally:
            self._dial = None
        self.on_connected()

    def on_connected(self) -> None:
        """Go on with an open connection."""
        raise NotImplementedError

    def send(self, parts: list[bytes], patience: float) -> None:
        """Send the request."""
        if self._connection is None:
            raise RuntimeError("a leg sends before it is connected")
        self._sent = True
        self._connection.send(self, parts, patience)

    def leave(self) -> None:
        """End the leg; a response that is not over is dropped.

        With it goes the request at the engine.
        """
        self._left = True
        self._occupancy.release()
        if self._dial is not None:
            self._dial.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._sent:
                connection.drop(self)
            else:
                connection.give_back()

    def pause(self) -> None:
        """Stop reading."""
        if self._connection is not None:
            self._connection.pause(self)

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None:
            self._connection.resume(self)

    # what the connection reports

    def on_head(self, head: ResponseHead) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self.head = head
        if (load := load_of(head)) is not None and not self._left:
            self.reports = True
            self.endpoint.report(load, self._flow.now())

    def on_body(self, data: bytes, boundary: int) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        del boundary
        self._size += len(data)
        if self._size > _MAX_ANSWER:
            self._broken("protocol", f"its answer exceeds {_MAX_ANSWER} bytes")

    def on_broken(self, error: BrokenError) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self._broken(error.cause, str(error))

    def on_end(self) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self.body, self.payload = b"".join(self.payload or ()), None
        self._on_body(self.body)

    def _on_body(self, body: bytes) -> None:
        raise NotImplementedError

    def _broken(self, cause: str, message: str, *, unavailable: bool = False) -> None:
        if not self._left:
            endpoint, now = self.endpoint, self._flow.now()
            self._flow.handle(Broken(endpoint, cause, message, unavailable, endpoint.health.doubtful, now))

    def _is_bad(self, status: int) -> bool:
        """Report a whole answer that is none, or is for the client."""
        if status >= 500:
            self._broken(
                "status", f"it answered {status}", unavailable=status == HTTPStatus.SERVICE_UNAVAILABLE
            )
        elif status == HTTPStatus.TOO_MANY_REQUESTS:
            self._broken("rate_limited", "it answered 429")
        elif status != HTTPStatus.OK:
            self._flow.handle(Answered(self.endpoint))
        else:
            return False
        return True


class PrefillLeg(Leg):
    """The first leg: the whole prompt, one token."""

    __slots__ = ("_is_cut", "_parts", "_patience")

    def __init__(
        self,
        flow: Flow,
        pool: Pool,
        endpoint: Endpoint,
        occupancy: Occupancy,
        *,
        parts: list[bytes],
        patience: float,
        is_cut: Callable[[dict[str, Any]], bool],
    ) -> None:
        super().__init__(flow, pool, endpoint, occupancy)
        self._is_cut = is_cut
        self._parts = parts
        self._patience = patience

    def on_connected(self) -> None:
        """Send at once: nothing can be used up yet."""
        parts, self._parts = self._parts, []
        self.send(parts, self._patience)

    def _on_body(self, body: bytes) -> None:
        if self.head is None or self._is_bad(self.head.status):
            return
        fields = object_of(body)
        if fields is None:
            self._broken("protocol", "it answered no JSON object")
        elif self._is_cut(fields):
            self._broken("aborted", "it is shutting down", unavailable=True)
        else:
            kv, prompt, model = fields.get(KV_KEY), prompt_tokens(fields), fields.get("model")
            if isinstance(kv, dict):
                self._flow.prefilled(self, kv, read_signature(kv.get(ELDR_KEY)), prompt, model)
            else:
                self._flow.prefilled(self, None, NO_SIGNATURE, prompt, model)

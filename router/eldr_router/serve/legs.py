"""The two legs of a request: what an engine's response means, told to the request as events."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import orjson

from eldr.contract import ELDR_KEY, KV_KEY
from eldr_router.http.events import FirstEvent
from eldr_router.http.framing import CloseBody, LengthBody
from eldr_router.http.head import JSON, ResponseHead
from eldr_router.net.outbound import BrokenError, ConnectError, EngineConnection
from eldr_router.net.pool import Pool
from eldr_router.plan import answers
from eldr_router.plan.assemble import Assembly, AssemblyError
from eldr_router.plan.relay import Relay
from eldr_router.plan.signature import NO_SIGNATURE, Signature, read_signature
from eldr_router.plan.steps import Answered, Broken, Connected, Ended, Event, Form, Heard, Ready, Refused
from eldr_router.state.registry import Endpoint, Lease

_OK, _BUSY, _UNAVAILABLE = 200, 429, 503
_MAX_ANSWER = 256 << 20
_MAX_HELD = 1 << 20
"""A whole answer up to this size is read before the client's response begins, so that it can still be retried."""


class Flow(Protocol):
    """The request that a leg belongs to."""

    def handle(self, event: Event) -> None:
        """Take an event."""

    def prefilled(self, leg: PrefillLeg, kv: dict[str, Any] | None, signature: Signature) -> None:
        """Take what a prefill engine handed over."""

    def now(self) -> float:
        """Monotonic seconds."""

    def write(self, data: bytes) -> None:
        """Write to the client."""


class Leg:
    """One exchange with one engine, its connection and its load.

    Parameters
    ----------
    flow : Flow
    endpoint : Endpoint
    lease : Lease
        Given back by :meth:`leave`.
    """

    __slots__ = (
        "_connection",
        "_dial",
        "_flow",
        "_lease",
        "_left",
        "_pool",
        "_sent",
        "_size",
        "body",
        "endpoint",
        "head",
        "payload",
    )

    def __init__(self, flow: Flow, pool: Pool, endpoint: Endpoint, lease: Lease) -> None:
        self._flow = flow
        self._pool = pool
        self._lease = lease
        self._connection: EngineConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._left = self._sent = False
        self._size = 0
        self.endpoint = endpoint
        self.head: ResponseHead | None = None
        self.payload: list[bytes] | None = []
        self.body = b""

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
            self._flow.handle(Refused(self.endpoint, str(error)))
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
        """End the leg; a response that is not over is dropped, and with it the request at the engine."""
        self._left = True
        self._lease.release()
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

    # what the connection tells

    def on_head(self, head: ResponseHead) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self.head = head

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
        self._whole(self.body)

    def _whole(self, body: bytes) -> None:
        raise NotImplementedError

    def _broken(self, cause: str, message: str, *, unavailable: bool = False) -> None:
        if not self._left:
            self._flow.handle(Broken(self.endpoint, cause, message, unavailable))

    def _is_bad(self, status: int) -> bool:
        """Report a whole answer that is none, or is for the client."""
        if status >= 500:
            self._broken("status", f"it answered {status}", unavailable=status == _UNAVAILABLE)
        elif status == _BUSY:
            self._broken("busy", "it answered 429")
        elif status != _OK:
            self._flow.handle(Answered(self.endpoint))
        else:
            return False
        return True


class PrefillLeg(Leg):
    """The first leg: the whole prompt, one token."""

    __slots__ = ("_parts", "_patience")

    def __init__(
        self, flow: Flow, pool: Pool, endpoint: Endpoint, lease: Lease, *, parts: list[bytes], patience: float
    ) -> None:
        super().__init__(flow, pool, endpoint, lease)
        self._parts = parts
        self._patience = patience

    def on_connected(self) -> None:
        """Send at once: nothing can be used up yet."""
        parts, self._parts = self._parts, []
        self.send(parts, self._patience)

    def _whole(self, body: bytes) -> None:
        if self.head is None or self._is_bad(self.head.status):
            return
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            self._broken("protocol", "it answered no JSON object")
        elif answers.has_aborted(fields):
            self._broken("aborted", "it is shutting down", unavailable=True)
        else:
            kv = fields.get(KV_KEY)
            if isinstance(kv, dict):
                self._flow.prefilled(self, kv, read_signature(kv.get(ELDR_KEY)))
            else:
                self._flow.prefilled(self, None, NO_SIGNATURE)


class DecodeLeg(Leg):
    """The second leg: read so far that it is safe to begin the client's response, then passed on byte for byte.

    Parameters
    ----------
    form : Form
        What the engine is asked for.
    dechunk : bool
        The client knows no chunks.
    chat : bool
        Which object an assembled answer is.
    """

    __slots__ = (
        "_assembly",
        "_begun",
        "_chat",
        "_dechunk",
        "_first",
        "_form",
        "_pending",
        "_relay",
    )

    def __init__(
        self,
        flow: Flow,
        pool: Pool,
        endpoint: Endpoint,
        lease: Lease,
        *,
        form: Form,
        dechunk: bool,
        chat: bool,
    ) -> None:
        super().__init__(flow, pool, endpoint, lease)
        self._form = form
        self._dechunk = dechunk
        self._chat = chat
        self._begun = False
        self._assembly: Assembly | None = None
        self._relay: Relay | None = None
        self._first: FirstEvent | None = None
        self._pending: list[bytes] = []

    @property
    def whole(self) -> bool:
        """Whether the whole answer is here."""
        return self._relay is None

    @property
    def until_close(self) -> bool:
        """Whether only the connection's end ends the body."""
        return self.head is not None and isinstance(self.head.body, CloseBody)

    def on_connected(self) -> None:
        """Ask before anything is sent: the blocks may not be pulled any longer."""
        self._flow.handle(Connected(self.endpoint, self._flow.now()))

    def on_head(self, head: ResponseHead) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        self.head = head
        if head.status != _OK:
            return
        if head.is_event_stream:
            self._first = FirstEvent(skip=self._is_opening)
            if self._form is Form.ASSEMBLE:
                self._assembly = Assembly(chat=self._chat)
            else:
                self._relay = Relay(head.body, dechunk=self._dechunk)
            return
        self._flow.handle(Heard(self.endpoint, self._flow.now()))  # whole answers come after their last token
        short = isinstance(head.body, LengthBody) and head.body.length <= _MAX_HELD
        if not short and not self._left:
            self._relay = Relay(head.body, dechunk=self._dechunk)
            self._flow.handle(Ready(self.endpoint, self._flow.now()))

    def on_body(self, data: bytes, boundary: int) -> None:
        """Pass bytes on, or keep them until it is safe to."""
        relay = self._relay
        if relay is None:
            super().on_body(data, boundary)
            if self._assembly is not None and not self._left:
                come, self.payload = self.payload or [], []
                self._look(come)
                if not self._left:
                    self._assemble(self._assembly, b"".join(come))
            return
        parts: list[bytes] = []
        if self.payload is not None:
            parts, self.payload = self.payload, []
        if self._dechunk:
            data = b"".join(parts)
            boundary = len(data)
        if self._begun:
            out = relay.pass_on(data, boundary)
            if out:
                self._flow.write(out)
            return
        self._pending.append(relay.pass_on(data, boundary))
        self._look(parts)

    def begin(self) -> bytes:
        """Return what has come so far; from now on bytes go straight to the client."""
        self._begun = True
        pending, self._pending = b"".join(self._pending), []
        if not self._dechunk:
            self.payload = None
        return pending

    def epitaph(self, message: str) -> bytes | None:
        """Return what ends a broken stream decently, None where nothing does."""
        is_stream = self._relay is not None and self.head is not None and self.head.is_event_stream
        return self._relay.epitaph(message) if self._relay is not None and is_stream else None

    def _assemble(self, assembly: Assembly, data: bytes) -> None:
        try:
            assembly.feed(data)
        except AssemblyError as error:
            self._misassembled(error)

    def _misassembled(self, error: AssemblyError) -> None:
        if error.answer is None or self.head is None:
            self._broken(error.cause, str(error), unavailable=error.cause == "aborted")
            return
        status, self.body = error.answer
        self.head = ResponseHead(status, [JSON], self.head.body, True, JSON[1])
        self._flow.handle(Answered(self.endpoint))

    def _look(self, parts: list[bytes]) -> None:
        first = self._first
        if first is not None and first.feed(b"".join(parts)) and not self._left:
            self._first = None
            self._spoke(first.data)

    def _is_opening(self, data: bytes) -> bool:
        opening = answers.is_opening(data)
        if opening and not self._left:
            # it says nothing, but it comes after the pull; words may be long in coming if the model thinks unseen
            self._flow.handle(Heard(self.endpoint, self._flow.now()))
        return opening

    def _spoke(self, data: bytes | None) -> None:
        word = "tokens" if data is None else answers.first_word(data)
        if word == "error_event":
            self._broken(word, "it reported an error instead of a first token")
        elif word == "aborted":
            self._broken(word, "it ended the request without a token; it is shutting down", unavailable=True)
        elif self._relay is None:
            self._flow.handle(Heard(self.endpoint, self._flow.now()))
        else:
            self._flow.handle(Ready(self.endpoint, self._flow.now()))

    def on_end(self) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        if self._begun:
            self._flow.handle(Ended())
        elif self._relay is not None:
            self._broken("empty", "its stream ended without an event")
        else:
            super().on_end()

    def _whole(self, body: bytes) -> None:
        if self.head is None or self._is_bad(self.head.status):
            return
        if self._assembly is not None:
            try:
                self.body = self._assembly.finish()
            except AssemblyError as error:
                self._misassembled(error)
                return
        elif answers.is_aborted(body):
            self._broken("aborted", "it cut the answer short; it is shutting down", unavailable=True)
            return
        self._flow.handle(Ready(self.endpoint, self._flow.now()))

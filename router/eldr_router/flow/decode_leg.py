"""The second leg: a decode engine's answer."""

from __future__ import annotations

from http import HTTPStatus

from eldr_router.api import answers
from eldr_router.api.paths import Api
from eldr_router.api.relay import Relay
from eldr_router.engines.endpoint import Endpoint, Occupancy
from eldr_router.engines.load import is_full
from eldr_router.flow.legs import Flow, Leg
from eldr_router.flow.vocabulary import Connected, Ended, EngineFull, PullConfirmed, Ready
from eldr_router.http.events import FirstEvent
from eldr_router.http.framing import CloseBody, LengthBody
from eldr_router.http.head import ResponseHead
from eldr_router.net.outbound import BrokenError
from eldr_router.net.pool import Pool

_MAX_HELD = 1 << 20
"""A whole answer up to this size is read before the client's response begins, so that it can still be retried."""


class DecodeLeg(Leg):
    """The second leg: read until it is safe to begin, then passed on.

    Parameters
    ----------
    flow : Flow
    pool : Pool
    endpoint : Endpoint
    occupancy : Occupancy
    dechunk : bool
        The client knows no chunks.
    api : Api
        How its answers read.
    search : int
        Bytes of a stream to search for its first word.
    """

    __slots__ = (
        "_api",
        "_begun",
        "_dechunk",
        "_early",
        "_first",
        "_pending",
        "_relay",
        "_search",
    )

    def __init__(
        self,
        flow: Flow,
        pool: Pool,
        endpoint: Endpoint,
        occupancy: Occupancy,
        *,
        dechunk: bool,
        api: Api,
        search: int,
    ) -> None:
        super().__init__(flow, pool, endpoint, occupancy)
        self._dechunk = dechunk
        self._api = api
        self._search = search
        self._begun = self._early = False
        self._relay: Relay | None = None
        self._first: FirstEvent | None = None
        self._pending: list[bytes] = []

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer is here."""
        return self._relay is None

    @property
    def streams(self) -> bool:
        """Whether the client gets its answer as events."""
        return self._relay is not None and self.head is not None and self.head.is_event_stream

    @property
    def end(self) -> bytes:
        """The end of an answer that is over."""
        return self.body if self._relay is None else self._relay.end

    @property
    def until_close(self) -> bool:
        """Whether only the connection's end ends the body."""
        return self.head is not None and isinstance(self.head.body, CloseBody)

    def on_connected(self) -> None:
        """Ask before anything is sent: the blocks may not be pulled any longer."""
        self._flow.handle(Connected(self.endpoint, self._flow.now()))

    def on_head(self, head: ResponseHead) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        super().on_head(head)
        if head.status != HTTPStatus.OK:
            return
        if head.is_event_stream:
            self._first = FirstEvent(self._search, skip=self._is_opening)
            self._relay = Relay(head.body, dechunk=self._dechunk)
            return
        short = isinstance(head.body, LengthBody) and head.body.length <= _MAX_HELD
        if not short and not self._left:
            self._relay = Relay(head.body, dechunk=self._dechunk)
            self._flow.handle(Ready(self.endpoint, self._flow.now(), self.reports))

    def on_body(self, data: bytes, boundary: int) -> None:
        """Pass bytes on, or keep them until it is safe to."""
        relay = self._relay
        if relay is None:
            super().on_body(data, boundary)
            return
        if self._begun and not self._dechunk:  # the hot path, once per streamed chunk
            self._flow.write(relay.pass_on(data, boundary))
            return
        parts, self.payload = self.payload or [], []
        if self._dechunk:
            data = b"".join(parts)
            boundary = len(data)
        out = relay.pass_on(data, boundary)
        if self._begun:
            self._flow.write(out)
        else:
            self._pending.append(out)
            self._look(parts)

    def begin(self) -> bytes:
        """Return what has come; from now on bytes go to the client."""
        self._begun = True
        pending, self._pending = b"".join(self._pending), []
        if not self._dechunk:
            self.payload = None
        return pending

    def ending(self, message: str) -> bytes | None:
        """Return what ends a broken stream decently, None where nothing does."""
        if self._relay is None or not self.streams:
            return None
        return self._relay.ending(message, self._api.done, named=self._api.named)

    def _look(self, parts: list[bytes]) -> None:
        first = self._first
        if first is not None and first.feed(b"".join(parts)) and not self._left:
            self._first = None
            self._spoke(first.data)

    def _is_opening(self, data: bytes) -> bool:
        word = self._api.first_word(data)
        self._early = self._early or word == "early"
        if word == "opening" and not self._left:
            # it says nothing, but it comes after the pull; words may be long in coming if the model thinks unseen
            self._flow.handle(PullConfirmed(self.endpoint, self._flow.now()))
        return word in ("opening", "early")

    def _spoke(self, data: bytes | None) -> None:
        word = "tokens" if data is None else self._api.first_word(data)
        if data is None and self._api.echoes:
            self._broken("protocol", f"the first {self._search} bytes of its stream say nothing")
        elif word == "error_event":
            self._broken(word, "it reported an error instead of a first token")
        elif word == "aborted":
            self._broken(word, "it ended the request without a token; it is shutting down", unavailable=True)
        else:
            self._flow.handle(Ready(self.endpoint, self._flow.now()))

    def on_broken(self, error: BrokenError) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        cut = self._early and self._first is not None and error.cause == "reset"
        # of a response whose pull failed vLLM ends the stream so, without a word
        self._broken("error_event" if cut else error.cause, str(error))

    def on_end(self) -> None:
        """See :class:`eldr_router.net.outbound.Receiver`."""
        if self._begun:
            self._flow.handle(Ended())
        elif self._relay is not None:
            self._broken("empty", "its stream ended without an event")
        else:
            super().on_end()

    def _on_body(self, body: bytes) -> None:
        if self.head is None:
            return
        if is_full(self.head):
            self._flow.handle(EngineFull(self.endpoint))  # any other 429 may come after a pull
            return
        if self._is_bad(self.head.status):
            return
        if answers.is_aborted(body, self._api.is_cut, self._api.hint):
            self._broken("aborted", "it cut the answer short; it is shutting down", unavailable=True)
            return
        self._flow.handle(Ready(self.endpoint, self._flow.now(), self.reports))

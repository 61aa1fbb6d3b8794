"""One leg of a request: what an engine's answer is worth, before anything of it reaches the client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from eldr.contract import ELDR_KEY, KV_KEY
from eldr_router.http.framing import LengthBody
from eldr_router.http.head import ResponseHead
from eldr_router.net.pool import Exchange
from eldr_router.plan import answers
from eldr_router.plan.placement import NO_SIGNATURE, Signature, read_signature
from eldr_router.serve.relay import Relay
from eldr_router.state.registry import Endpoint

_UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE
_MAX_HELD = 1 << 20
"""A whole answer up to this size is read before the client's response begins, so that it can still be retried."""


class AnsweredError(Exception):
    """An engine answered the request itself (4xx): pass it on unchanged."""

    def __init__(self, head: ResponseHead, body: bytes) -> None:
        super().__init__(head.status)
        self.head = head
        self.body = body


class RetryError(Exception):
    """An attempt is lost.

    Parameters
    ----------
    cause : str
        A bounded metric label.
    message : str
    unavailable : bool
        The engine says that it takes no requests for now.
    """

    def __init__(self, cause: str, message: str, *, unavailable: bool = False) -> None:
        super().__init__(message)
        self.cause = cause
        self.unavailable = unavailable


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill engine handed over; ``kv`` is None if it handed over nothing."""

    source: Endpoint
    kv: dict[str, Any] | None
    signature: Signature
    at: float


def read_prefilled(source: Endpoint, head: ResponseHead, body: bytes, now: float) -> Prefilled:
    """Return what a prefill engine's whole answer holds.

    Raises
    ------
    AnsweredError
        If it is for the client.
    RetryError
        If it is worth nothing.
    """
    if head.status >= 500:
        message = f"prefill engine {source.name} answered {head.status}"
        raise RetryError("status", message, unavailable=head.status == _UNAVAILABLE)
    if head.status != 200:
        raise AnsweredError(head, body)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise RetryError("protocol", f"prefill engine {source.name} answered no JSON object")
    if answers.has_aborted(fields):
        raise RetryError("aborted", f"prefill engine {source.name} is shutting down", unavailable=True)
    kv = fields.get(KV_KEY)
    if not isinstance(kv, dict):
        return Prefilled(source, None, NO_SIGNATURE, now)
    return Prefilled(source, kv, read_signature(kv.get(ELDR_KEY)), now)


async def first_bytes(
    exchange: Exchange, wire: bytes, idle_timeout: float, *, dechunk: bool, usable: float | None = None
) -> tuple[ResponseHead, Relay]:
    """Send a request to a decode engine and read so far that it is safe to begin the client's response.

    Parameters
    ----------
    exchange : Exchange
    wire : bytes
    idle_timeout : float
        Seconds without a byte.
    dechunk : bool
        Whether the client knows no chunks.
    usable : float, optional
        Seconds that are left of the lease of the KV to be pulled. A stream whose first event comes later may have
        pulled what others had overwritten, and no engine tells. The opening chunk of a chat comes after the pull too, and
        words may be long in coming then: engines can be asked to hide what a model thinks.

    Raises
    ------
    RetryError
        If the engine failed and says so: by its status, an error event, or an end without a token.
    BrokenError
        If it said nothing.
    """
    loop = asyncio.get_running_loop()
    expiry = None if usable is None else loop.time() + usable
    head = await exchange.send(wire, idle_timeout)
    if head.status >= 500:
        raise RetryError("status", f"it answered {head.status}", unavailable=head.status == _UNAVAILABLE)
    peek: asyncio.Future[bytes | None] | None = None
    if head.status == 200 and head.is_event_stream:
        peek = loop.create_future()
    opened: asyncio.Future[None] = loop.create_future()
    relay = Relay(head.body, loop.create_future(), dechunk=dechunk, peek=peek, opened=opened)
    exchange.attach(relay, head.body)
    if peek is not None and (data := await _before(peek, opened, expiry)) is not None:
        word = answers.first_word(data)
        if word == "error_event":
            raise RetryError(word, "it reported an error instead of a first token")
        if word == "aborted":
            raise RetryError(
                word, "it ended the request without a token; it is shutting down", unavailable=True
            )
    elif head.status == 200 and isinstance(head.body, LengthBody) and head.body.length <= _MAX_HELD:
        await relay.waiter
        if answers.is_aborted(relay.held()):
            raise RetryError("aborted", "it cut the answer short; it is shutting down", unavailable=True)
    if relay.waiter.done() and (error := relay.waiter.result()) is not None:
        raise error
    return head, relay


async def _before(
    peek: asyncio.Future[bytes | None], opened: asyncio.Future[None], expiry: float | None
) -> bytes | None:
    if expiry is not None:
        left = max(0.0, expiry - peek.get_loop().time())
        either: set[asyncio.Future[Any]] = {peek, opened}
        done, _ = await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise RetryError("expired", "nothing came before the lease of its prefill result was nearly over")
    return await peek

"""API keys: clients need one where keys are set."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256

from eldr.contract import PATH_HEALTH, PATH_READY
from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers
from eldr_router.http.requests import Request, header
from eldr_router.net.inbound import ClientConnection, Handler

_OPEN = frozenset((PATH_HEALTH, PATH_READY))
_BEARER = b"bearer "
_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"


class Guard:
    """Lets requests through to a handler.

    Parameters
    ----------
    handler : Handler
    keys : callable
        Returns SHA-256 digests of the keys now, or None where none is asked for.
    refused : callable
        Called for each request that is not let through.
    """

    def __init__(
        self, handler: Handler, keys: Callable[[], tuple[bytes, ...] | None], refused: Callable[[], None]
    ) -> None:
        self._handler = handler
        self._keys = keys
        self._refused = refused

    def __call__(self, request: Request, client: ClientConnection) -> None:
        """Answer one request; RouterError 401 where a key is missing or unknown."""
        error = self.check(request.path, request.headers)
        if error is not None:
            raise error
        self._handler(request, client)

    def check(self, path: str, headers: Headers) -> RouterError | None:
        """Return the 401 for a request whose key is missing or unknown."""
        keys = self._keys()
        if keys is None or path in _OPEN:
            return None
        given = key_of(headers)
        digest = sha256(given).digest()
        # all are compared, so that the time reveals nothing
        if sum(hmac.compare_digest(digest, key) for key in keys) and given:
            return None
        self._refused()
        what = "is not known" if given else "is missing"
        return RouterError(
            401,
            f"the API key {what}; send 'authorization: Bearer <key>'",
            "invalid_api_key",
            challenge=True,
        )


def key_of(headers: Headers) -> bytes:
    """Return the client's key, as OpenAI or Anthropic send it; or empty."""
    sent = header(headers, _AUTHORIZATION) or b""
    if sent[: len(_BEARER)].lower() == _BEARER:
        return sent[len(_BEARER) :].strip()
    return (header(headers, _API_KEY) or b"").strip()

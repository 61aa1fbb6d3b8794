"""Headers between client and engines, both ways. Pure."""

from __future__ import annotations

from eldr.contract import (
    HEADER_DECODE,
    HEADER_DOMAIN,
    HEADER_LIMIT,
    HEADER_LOG,
    HEADER_REQUEST_ID,
    HEADER_SESSION,
)
from eldr_router.http.head import JSON, Headers, ResponseHead, end_to_end, header_lines
from eldr_router.http.requests import Request

_REQUEST_ID = HEADER_REQUEST_ID.encode()
_DECODE = HEADER_DECODE.encode()
_LOG = HEADER_LOG.encode()
_DOMAIN = HEADER_DOMAIN.encode()
_SESSION = HEADER_SESSION.encode()
_NOT_FORWARDED = frozenset(
    (
        b"host",
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"accept-encoding",  # the first event must be readable
        b"expect",
        b"x-data-parallel-rank",  # one of an engine's; no client knows which engines it gets
        _REQUEST_ID,
    )
)
_OURS = b"x-eldr-"
"""How the names of headers begin that router and engines send each other, and clients the router."""
_LIMIT_LINE = b"%b: %%d\r\n" % HEADER_LIMIT.encode()
_POST = b"POST %%b HTTP/1.1\r\nhost: %%b\r\n%b%b: %%b\r\ncontent-length: %%d\r\n%%b\r\n" % (
    header_lines([JSON]),
    _REQUEST_ID,
)
_NOT_RETURNED = frozenset((_REQUEST_ID,))
_NOT_RETURNED_WHOLE = _NOT_RETURNED | {b"content-length", b"content-type"}


def to_engine(request: Request) -> Headers:
    """Return the client's headers that engines get."""
    return foreign(request.headers, _NOT_FORWARDED)


def foreign(headers: Headers, drop: frozenset[bytes]) -> Headers:
    """Return the headers that travel on, without those of our own protocol."""
    return [header for header in end_to_end(headers, drop) if not header[0].startswith(_OURS)]


def lines(request: Request) -> bytes:
    """Return the same as they stand in a head, once for all legs."""
    return header_lines(to_engine(request))


def limit_line(limit: int) -> bytes:
    """Return the header line of the limit that an engine keeps."""
    return _LIMIT_LINE % limit


def post(path: str, authority: bytes, upstream_id: str, client: bytes, body: bytes) -> list[bytes]:
    """Return a request as it is sent to an engine: its head, and its body.

    ``client`` are the client's headers, from :func:`lines`.
    """
    return [_POST % (path.encode(), authority, upstream_id.encode(), len(body), client), body]


def own(upstream_id: str) -> Headers:
    """Return the headers that the router sets on every completion request."""
    return [JSON, (_REQUEST_ID, upstream_id.encode())]


def to_client(head: ResponseHead, *, complete: bool, chunked: bool, endpoint: str | None = None) -> Headers:
    """Return an engine's headers for the client.

    Parameters
    ----------
    head : ResponseHead
    complete : bool
        The body was read and gets a new length.
    chunked : bool
        The body is passed on in its chunks.
    endpoint : str, optional
        Name of the decode engine.
    """
    headers = foreign(head.headers, _NOT_RETURNED_WHOLE if complete else _NOT_RETURNED)
    if complete:
        headers.append((b"content-type", head.content_type) if head.content_type else JSON)
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    if endpoint is not None:
        headers.append((_DECODE, endpoint.encode()))
    return headers


def returned_id(request: Request, own: str) -> tuple[bytes, bytes]:
    """Return the client's own request id, or ours, as a response header."""
    return (_REQUEST_ID, request.get(_REQUEST_ID) or own.encode())


def session(request: Request) -> bytes:
    """Return what the client wants kept together, empty for nothing."""
    return request.get(_SESSION) or b""


def domain(request: Request) -> str | None:
    """Return the domain that the client says the request belongs to."""
    value = request.get(_DOMAIN)
    return None if value is None else value.decode("latin-1")


def is_logged(request: Request) -> bool:
    """Return whether the client lets this request into the signature log."""
    return request.get(_LOG) != b"off"

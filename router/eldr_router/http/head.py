"""Heads of messages: parse an engine's response, write responses and requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from eldr_router.http.framing import ChunkedBody, CloseBody, FramingError, LengthBody, Tracker

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """An engine's response head.

    Attributes
    ----------
    status : int
    headers : list of (bytes, bytes)
        Names in lower case.
    body : Tracker
        Of the body that follows.
    keep_alive : bool
        Whether the connection may be used again after the body.
    """

    status: int
    headers: Headers
    body: Tracker
    keep_alive: bool

    def get(self, name: bytes) -> bytes | None:
        """Return a header's value."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return (self.get(b"content-type") or b"").startswith(b"text/event-stream")


def parse_head(block: bytes) -> ResponseHead:
    """Parse a response head without its final blank line.

    Raises
    ------
    FramingError
        If the head breaks HTTP or its framing is ambiguous.
    """
    lines = block.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or len(code) != 3:
        raise FramingError(f"not a response: {lines[0][:60]!r}")
    status = int(code)
    headers: Headers = []
    length: int | None = None
    encoding: bytes | None = None
    keep_alive = version == b"HTTP/1.1"
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or b"\n" in value or b"\r" in value:
            raise FramingError(f"not a header: {line[:60]!r}")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length":
            if not value.isdigit() or (length is not None and length != int(value)):
                raise FramingError(f"content-length: {value[:40]!r}")
            length = int(value)
        elif name == b"transfer-encoding":
            encoding = value.lower() if encoding is None else encoding + b"," + value.lower()
        elif name == b"connection":
            tokens = {token.strip() for token in value.lower().split(b",")}
            keep_alive = b"close" not in tokens and (keep_alive or b"keep-alive" in tokens)
        headers.append((name, value))
    body: Tracker
    if status < 200 or status in (204, 304):
        body = LengthBody(0)
    elif encoding is not None:
        if encoding != b"chunked" or length is not None:
            raise FramingError(f"transfer-encoding {encoding[:40]!r} with content-length {length}")
        body = ChunkedBody()
    elif length is not None:
        body = LengthBody(length)
    else:
        body, keep_alive = CloseBody(), False
    return ResponseHead(status, headers, body, keep_alive)


def write_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a response head with its final blank line."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b"Status"))]
    lines += [b"%b: %b" % header for header in headers]
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def write_request(method: str, target: str, authority: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a request head with its final blank line."""
    lines = [b"%b %b HTTP/1.1" % (method.encode("latin-1"), target.encode("latin-1"))]
    lines.append(b"host: %b" % authority.encode())
    lines += [b"%b: %b" % header for header in headers]
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def authority(host: str, port: int) -> str:
    """Return ``host:port`` as it stands in URLs and Host headers, IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def end_to_end(headers: Headers, drop: frozenset[bytes] = frozenset()) -> Headers:
    """Return the headers that travel on: neither hop-by-hop, nor named by Connection, nor in ``drop``."""
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection":
            named |= frozenset(token.strip().lower() for token in value.split(b","))
    return [
        (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP and name not in drop and name not in named
    ]

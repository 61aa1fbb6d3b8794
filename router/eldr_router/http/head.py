"""Heads of messages, parsed and written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

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

JSON = (b"content-type", b"application/json")

_FIELD = re.compile(rb"\r\n([!-9;-~]+):[ \t]*([^\r\n]*)")
_READ = frozenset((b"content-length", b"transfer-encoding", b"connection", b"content-type"))
_MAX_DIGITS = 15
_HEAD = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})[^\r\n]*(?:\r\n[!-9;-~]+:[^\r\n]*)*")
_LINES = {status.value: b"HTTP/1.1 %d %b" % (status.value, status.phrase.encode()) for status in HTTPStatus}

Headers = list[tuple[bytes, bytes]]


class ResponseHead(NamedTuple):
    """An engine's response head.

    Attributes
    ----------
    headers : list of (bytes, bytes)
        Names in lower case.
    body : Tracker
        Of the body that follows.
    keep_alive : bool
        Whether the connection may be used again after the body.
    content_type : bytes
        Empty for none.
    """

    status: int
    headers: Headers
    body: Tracker
    keep_alive: bool
    content_type: bytes

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.content_type.startswith(b"text/event-stream")


def parse_head(block: bytes) -> ResponseHead:
    """Parse a response head without its final blank line.

    FramingError if it breaks HTTP or its framing is ambiguous.
    """
    match = _HEAD.fullmatch(block)
    if match is None:
        raise FramingError(f"not a response head: {block[:200]!r}")
    keep_alive = match[1] == b"1"
    status = int(match[2])
    length: bytes | None = None
    encoding: bytes | None = None
    kind = b""
    headers = [(name.lower(), value.rstrip(b" \t")) for name, value in _FIELD.findall(block)]
    for name, value in headers:
        if name not in _READ:
            continue
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            if (
                not value.isdigit()
                or len(value) > _MAX_DIGITS
                or (length is not None and int(length) != int(value))
            ):
                raise FramingError(f"content-length: {value[:40]!r}")
            length = value
        elif name == b"transfer-encoding":
            encoding = value.lower() if encoding is None else encoding + b"," + value.lower()
        else:
            tokens = {token.strip() for token in value.lower().split(b",")}
            keep_alive = b"close" not in tokens and (keep_alive or b"keep-alive" in tokens)
    body: Tracker
    if status < 200 or status in (204, 304):
        body = LengthBody(0)
    elif encoding is not None:
        if encoding != b"chunked" or length is not None:
            raise FramingError(f"transfer-encoding {encoding[:40]!r} with content-length {length!r}")
        body = ChunkedBody()
    elif length is not None:
        body = LengthBody(int(length))
    else:
        body, keep_alive = CloseBody(), False
    return ResponseHead(status, headers, body, keep_alive, kind)


def write_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a response head with its final blank line."""
    line = _LINES.get(status) or b"HTTP/1.1 %d Status" % status
    return b"%b\r\n%b\r\n" % (line, header_lines(headers))


def write_request(method: str, target: str, authority: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a request head with its final blank line."""
    where = method.encode("latin-1"), target.encode("latin-1"), authority.encode()
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (*where, header_lines(headers))


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they stand in a head, each with its line's end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def end_to_end(headers: Headers, drop: frozenset[bytes] = frozenset()) -> Headers:
    """Return the end-to-end headers that are not in ``drop``.

    Hop-by-hop headers and those that Connection names are none.
    """
    kept = [header for header in headers if header[0] not in HOP_BY_HOP and header[0] not in drop]
    for name, value in headers:
        if name == b"connection":
            named = {token.strip().lower() for token in value.split(b",")}
            kept = [header for header in kept if header[0] not in named]
    return kept

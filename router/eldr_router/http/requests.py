"""Requests out of a client's bytes: framing checks and limits, no I/O. Any cut of the bytes gives the same requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import httptools

from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers

MAX_HEAD = 1 << 16
MAX_HEADERS = 128


@dataclass(slots=True)
class Request:
    """A complete request; header names in lower case."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    keep_alive: bool
    http10: bool

    def get(self, name: bytes) -> bytes | None:
        """Return a header's value."""
        return next((value for key, value in self.headers if key == name), None)


class RequestReader:
    """Incremental reader of one connection.

    Parameters
    ----------
    max_body : int
        Bytes; a longer body is refused with 413.

    Attributes
    ----------
    queue : deque of Request or RouterError
        What has arrived, in order. An error is the last entry.
    deaf : bool
        Nothing more is read: after an error, or after a request that closes the connection.
    receiving : bool
        A request has begun and is not complete.
    continue_due : bool
        The client waits for ``100 Continue``; whoever sends it clears this.
    """

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._head_read = 0
        self.queue: deque[Request | RouterError] = deque()
        self.deaf = False
        self.receiving = False
        self.continue_due = False

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        if self.deaf:
            return
        if self._in_head:
            self._head_read += len(data)  # the parser hides a header until it is complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP/1.1: {error}", "invalid_http")
        if self._in_head and self._head_read > MAX_HEAD:
            self._head_too_large()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Serve the request as if it had not asked for another protocol (RFC 9110, section 7.8).

        The parser skips such a request's body, so its head is parsed again without the wish.
        """
        method = self._parser.get_method()
        if self.deaf or method == b"CONNECT":
            self._refuse(400, "tunnels are not supported", "invalid_http")
            return
        dropped = (b"upgrade", b"connection", b"http2-settings")
        lines = [b"%b %b HTTP/1.1" % (method, self._url)]
        lines += [b"%b: %b" % (name, value) for name, value in self._headers if name not in dropped]
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"\r\n".join([*lines, b"", b""]) + rest)

    def _refuse(self, status: int, message: str, code: str) -> None:
        if not self.deaf:
            self.deaf = True
            self.receiving = self.continue_due = False
            self.queue.append(RouterError(status, message, code))

    def _head_too_large(self) -> None:
        limits = f"{MAX_HEADERS} headers and {MAX_HEAD} bytes"
        self._refuse(431, f"the request head exceeds {limits}", "head_too_large")

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._head_size = self._head_read = self._body_size = 0
        self._in_head = self.receiving = True

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url
        if len(self._url) > MAX_HEAD:
            self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, or a trailer, within limits."""
        self._head_size += len(name) + len(value) + 4
        if self._head_size > MAX_HEAD or len(self._headers) >= MAX_HEADERS:
            self._head_too_large()
        elif self._in_head:  # trailers are dropped
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Check the framing and the expectations."""
        self._in_head = False
        if self.deaf:
            return
        length = encoding = expect = None
        for name, value in self._headers:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                encoding = value if encoding is None else encoding + b"," + value
            elif name == b"expect":
                expect = value.lower()
        version = self._parser.get_http_version()
        if encoding is not None and (
            length is not None or encoding.strip().lower() != b"chunked" or version == "1.0"
        ):
            self._refuse(400, f"transfer-encoding: {encoding[:40]!r} is not accepted", "invalid_http")
        elif version not in ("1.0", "1.1"):
            self._refuse(505, f"HTTP/{version} is not supported", "invalid_http")
        elif length is not None and int(length) > self._max_body:
            self._body_too_large()
        elif expect == b"100-continue":
            self.continue_due = version == "1.1"
        elif expect is not None:
            self._refuse(417, f"expect: {expect[:40]!r} is not supported", "invalid_http")

    def on_body(self, data: bytes) -> None:
        """Collect the body, within the limit."""
        self._body_size += len(data)
        if self._body_size > self._max_body:
            self._body_too_large()
        if not self.deaf:
            self._body.append(data)

    def _body_too_large(self) -> None:
        self._body.clear()
        self._refuse(413, f"the request body is longer than {self._max_body} bytes", "body_too_large")

    def on_message_complete(self) -> None:
        """Queue a complete request."""
        if self.deaf or self._parser.should_upgrade():
            return
        self.receiving = self.continue_due = False
        path, _, query = self._url.decode("latin-1").partition("?")
        keep_alive = self._parser.should_keep_alive()
        http10 = self._parser.get_http_version() == "1.0"
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode("latin-1")
        self.queue.append(Request(method, path, query, self._headers, body, keep_alive, http10))
        self.deaf = not keep_alive

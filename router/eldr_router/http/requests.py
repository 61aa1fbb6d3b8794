"""Requests out of a client's bytes, checked and limited. Pure.

Any cut of the bytes gives the same requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from eldr_router.http.errors import RouterError
from eldr_router.http.head import Headers

MAX_HEAD = 1 << 16
MAX_HEADERS = 128


class Budget:
    """Memory for all bodies of a port.

    Requests, those that are still arriving included, and answers not read.

    Parameters
    ----------
    limit : int
        Bytes.

    Attributes
    ----------
    fell_short : bool
        A request was refused; whoever makes room clears this.
    """

    __slots__ = ("fell_short", "held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.fell_short = False

    def take(self, size: int) -> bool:
        """Take so many bytes; False, and nothing is taken, if they are not left."""
        if self.held + size > self.limit:
            self.fell_short = True
            return False
        self.held += size
        return True

    def owe(self, size: int) -> None:
        """Take bytes that are in memory, whether any are left or not."""
        self.held += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.held -= size


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
    budget: Budget | None = None

    def drop_body(self) -> None:
        """Forget the body: it may be large, and the answer may take long."""
        if self.body:
            if self.budget is not None:
                self.budget.give(len(self.body))
            self.body = b""

    def get(self, name: bytes) -> bytes | None:
        """Return a header's value."""
        return header(self.headers, name)


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of a header."""
    for key, value in headers:
        if key == name:
            return value
    return None


Check = Callable[[str, Headers], RouterError | None]


class RequestReader:
    """Incremental reader of one connection.

    Parameters
    ----------
    max_body : int
        Bytes; a longer body is refused with 413.
    budget : Budget
        Shared with other connections; where it is used up, a body is refused with 503.
    check : callable, optional
        Returns why a request is refused by its path and headers alone: then none of its body is kept.

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

    def __init__(self, max_body: int, budget: Budget, check: Check | None = None) -> None:
        self._max_body = max_body
        self._budget = budget
        self._check = check
        self._body_size = 0
        self._body: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._head_read = 0
        self.queue: deque[Request | RouterError] = deque()
        self.deaf = False
        self.receiving = False
        self.continue_due = False

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        rest: bytes | None = data
        while rest is not None:
            rest = self._feed(rest)

    def _feed(self, data: bytes) -> bytes | None:
        if self.deaf:
            return None
        if self._in_head:
            self._head_read += len(data)  # the parser hides a header until it is complete
        rest = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP/1.1: {error}", "invalid_http")
        if self._in_head and self._head_read > MAX_HEAD:
            self._head_too_large()
        return rest

    def _without_upgrade(self, rest: bytes) -> bytes | None:
        """Return a request as if it had not asked for another protocol (RFC 9110, section 7.8), and what follows it.

        The parser skips such a request's body, so its head is parsed again without the wish.
        """
        method = self._parser.get_method()
        if self.deaf or method == b"CONNECT":
            self._refuse(400, "tunnels are not supported", "invalid_http")
            return None
        dropped = (b"upgrade", b"connection", b"http2-settings")
        lines = [b"%b %b HTTP/1.1" % (method, self._url)]
        lines += [b"%b: %b" % (name, value) for name, value in self._headers if name not in dropped]
        self._parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""]) + rest

    def close(self) -> None:
        """Forget what has arrived: the connection is gone, or ends."""
        self.deaf = True
        self._drop_partial()
        for item in self.queue:
            if isinstance(item, Request):
                item.drop_body()
        self.queue.clear()

    def _drop_partial(self) -> None:
        self._budget.give(self._body_size)
        self._body_size = 0
        self._body = []

    def _refuse(self, status: int, message: str, code: str, retry_after: int | None = None) -> None:
        self._end(RouterError(status, message, code, retry_after=retry_after))

    def _end(self, error: RouterError) -> None:
        if not self.deaf:
            self.deaf = True
            self.receiving = self.continue_due = False
            self._drop_partial()
            self.queue.append(error)

    def _head_too_large(self) -> None:
        limits = f"{MAX_HEADERS} headers and {MAX_HEAD} bytes"
        self._refuse(431, f"the request head exceeds {limits}", "head_too_large")

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url, self._path, self._query = b"", "", ""
        self._headers: Headers = []
        self._body = []
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
        hosts = 0
        for name, value in self._headers:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                encoding = value if encoding is None else encoding + b"," + value
            elif name == b"expect":
                expect = value.lower()
            elif name == b"host":
                hosts += 1
        version = self._parser.get_http_version()
        self._path, _, self._query = _origin_form(self._url.decode("latin-1")).partition("?")
        has_body = encoding is not None or (length is not None and int(length) > 0)
        if encoding is not None and (
            length is not None or encoding.strip().lower() != b"chunked" or version == "1.0"
        ):
            self._refuse(400, f"transfer-encoding: {encoding[:40]!r} is not accepted", "invalid_http")
        elif version not in ("1.0", "1.1"):
            self._refuse(505, f"HTTP/{version} is not supported", "invalid_http")
        elif length is not None and int(length) > self._max_body:
            self._body_too_large()
        elif hosts > 1 or (not hosts and version == "1.1"):  # RFC 9112, section 3.2
            self._refuse(400, f"expected one Host header, got {hosts}; send one", "invalid_http")
        elif expect not in (None, b"100-continue"):
            self._refuse(417, f"expect: {expect[:40]!r} is not supported", "invalid_http")
        elif has_body and self._check and (error := self._check(self._path, self._headers)):
            self._end(error)
        elif expect is not None:
            self.continue_due = version == "1.1"

    def on_body(self, data: bytes) -> None:
        """Collect the body, within the limits."""
        if self.deaf:
            return
        if self._body_size + len(data) > self._max_body:
            self._body_too_large()
        elif self._budget.take(len(data)):
            self._body_size += len(data)
            self._body.append(data)
        else:
            limit = self._budget.limit
            self._refuse(503, f"request bodies hold {limit} bytes already; retry later", "uploads_full", 1)

    def _body_too_large(self) -> None:
        self._refuse(
            413,
            f"the request body is longer than {self._max_body} bytes; send less, or raise the router's --max-body-mebibytes",
            "body_too_large",
        )

    def on_message_complete(self) -> None:
        """Queue a complete request."""
        if self.deaf or self._parser.should_upgrade():
            return
        self.receiving = self.continue_due = False
        keep_alive = self._parser.should_keep_alive()
        http10 = self._parser.get_http_version() == "1.0"
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method = self._parser.get_method().decode("latin-1")
        self.queue.append(
            Request(method, self._path, self._query, self._headers, body, keep_alive, http10, self._budget)
        )
        self._body_size = 0  # the request's from now on
        self._body = []
        self.deaf = not keep_alive


def _origin_form(target: str) -> str:
    """Return the path and query of a target, which clients may send with scheme and authority (RFC 9112, section 3.2.2)."""
    scheme, separator, rest = target.partition("://")
    if not separator or "/" in scheme:
        return target
    _, slash, path = rest.partition("/")
    return slash + path or "/"

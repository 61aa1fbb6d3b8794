"""Requests out of bytes: any cut gives the same requests, and nothing ambiguous passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.http.errors import RouterError
from eldr_router.http.requests import MAX_HEADERS, Budget, RequestReader
from tests.unit.router.test_framing import cut, cuts, encode

LIMIT = 1000


def read(data: bytes, sizes: list[int] = ()) -> list:
    reader = RequestReader(LIMIT, Budget(1 << 30))
    for part in cut(data, list(sizes)):
        reader.feed(part)
    return list(reader.queue)


def post(headers: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    host = b"" if b"host" in headers.lower() else b"Host: x\r\n"
    return b"POST /a?b=c HTTP/" + version + b"\r\n" + host + headers + b"\r\n" + body


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=4), cuts, st.booleans())
def test_pipelines(bodies, sizes, chunked):
    data = b"".join(
        post(b"Transfer-Encoding: chunked\r\n", encode([body], trailer=b"x: y\r\n"))
        if chunked
        else post(b"Content-Length: %d\r\nX-A:  b \r\n" % len(body), body)
        for body in bodies
    )
    got = read(data, sizes)
    assert [request.body for request in got] == bodies
    assert all((request.method, request.path, request.query) == ("POST", "/a", "b=c") for request in got)
    assert all(request.keep_alive and not request.http10 for request in got)
    if not chunked:
        assert all(request.get(b"x-a") == b"b" for request in got)


@pytest.mark.parametrize(
    ("headers", "body", "version", "status"),
    [
        (b"content-length: 3\r\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"transfer-encoding: chunked\r\ncontent-length: 3\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"content-length: 3\r\ncontent-length: 3\r\n", b"abc", b"1.1", 400),
        (b"content-length: 3\r\ncontent-length: 4\r\n", b"abcd", b"1.1", 400),
        (b"content-length: +3\r\n", b"abc", b"1.1", 400),
        (b"content-length: 0x3\r\n", b"abc", b"1.1", 400),
        (b"transfer-encoding: gzip, chunked\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"transfer-encoding: identity\r\n", b"abc", b"1.1", 400),
        (b"transfer-encoding: chunked\r\n", b"0\r\n\r\n", b"1.0", 400),
        (b"transfer-encoding : chunked\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"a: b\r\n c\r\ntransfer-encoding:\r\n chunked\r\n", b"0\r\n\r\n", b"1.1", 400),
        (b"transfer-encoding: chunked\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"1.1", 400),
        (b"a: b\nc: d\r\n", b"", b"1.1", 400),
        (b"a: \x00\r\n", b"", b"1.1", 400),
        (b"", b"", b"2.0", 505),
        (b"expect: magic\r\n", b"", b"1.1", 417),
        (b"x-no-host: x\r\n", b"", b"1.1", 400),
        (b"host: a\r\nHost: a\r\n", b"", b"1.1", 400),
        (b"host: a\r\nhost: b\r\n", b"", b"1.0", 400),
        (b"content-length: 1001\r\n", b"", b"1.1", 413),
        (b"transfer-encoding: chunked\r\n", encode([b"x" * 600] * 2), b"1.1", 413),
        (b"a: b\r\n" * (MAX_HEADERS + 1), b"", b"1.1", 431),
        (b"a: " + b"b" * 70000 + b"\r\n", b"", b"1.1", 431),
        (b"x" * 70000, b"", b"1.1", 431),
    ],
)
@pytest.mark.parametrize("sizes", [[], [1] * 100, [10, 50], [40000] * 3])
def test_refusals(headers, body, version, status, sizes):
    *before, last = read(post(headers, body, version), sizes)
    assert isinstance(last, RouterError), last
    assert last.status in (status, 400 if status in (505, 431) else status)
    assert before == []


@given(cuts, st.booleans(), st.booleans())
def test_a_wish_to_upgrade_is_ignored(sizes, chunked, twice):
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\nx-a: b\r\n"
    framing = b"transfer-encoding: chunked\r\n" if chunked else b"content-length: 5\r\n"
    data = post(wish + framing, encode([b"hello"]) if chunked else b"hello")
    got = read(data * (2 if twice else 1) + post(b"content-length: 1\r\n", b"z"), sizes)
    assert [item.body for item in got] == [b"hello"] * (2 if twice else 1) + [b"z"]
    assert (got[0].get(b"x-a"), got[0].get(b"upgrade"), got[0].path, got[0].query) == (
        b"b",
        None,
        "/a",
        "b=c",
    )


def test_a_tunnel_is_refused_once():
    (error,) = read(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n")
    assert error.status == 400


def test_limits_hold_over_many_small_reads():
    reader = RequestReader(LIMIT, Budget(1 << 30))
    reader.feed(b"GET / HTTP/1.1\r\n")
    for i in range(3000):
        reader.feed(b"a%d: %b\r\n" % (i, b"x" * 30))
    (error,) = reader.queue
    assert error.status == 431
    endless = RequestReader(LIMIT, Budget(1 << 30))
    endless.feed(b"GET /")
    for _ in range(1000):
        endless.feed(b"x" * 100)
    assert endless.queue[0].status == 431


def test_what_follows_a_closing_request_is_dropped():
    (only,) = read(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
    assert not only.keep_alive
    (old,) = read(b"GET / HTTP/1.0\r\n\r\n")
    assert old.http10
    assert not old.keep_alive


def test_nobody_is_asked_for_a_body_that_is_too_large():
    too_large = RequestReader(LIMIT, Budget(1 << 30))
    too_large.feed(post(b"expect: 100-continue\r\ncontent-length: 3000\r\n", b""))
    assert not too_large.continue_due
    assert too_large.queue[0].status == 413

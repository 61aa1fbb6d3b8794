"""Any cut of the bytes gives the same result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr_router.api.relay import Relay
from eldr_router.http.events import FirstEvent
from eldr_router.http.framing import ChunkedBody, CloseBody, FramingError, LengthBody
from eldr_router.http.head import end_to_end, parse_head, write_head

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
cuts = st.lists(st.integers(1, 30), max_size=60)


def encode(chunks: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return body + b"0\r\n" + trailer + b"\r\n"


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    for size in sizes:
        if at >= len(data):
            break
        parts.append(data[at : at + size])
        at += size
    return [*parts, data[at:]] if at < len(data) else parts


@given(payloads, cuts, st.sampled_from([b"", b";a=b", b" "]), st.sampled_from([b"", b"x: 1\r\n"]))
def test_chunks(chunks, sizes, extension, trailer):
    data = encode(chunks, extension, trailer)
    body, payload, seen, boundaries = ChunkedBody(), [], 0, set()
    for part in cut(data, sizes):
        assert not body.ended
        boundary = body.feed(part, payload)
        if boundary:
            boundaries.add(seen + boundary)
        seen += len(part)
    assert body.ended
    assert body.eof()
    assert b"".join(payload) == b"".join(chunks)
    ends, at = set(), 0
    for chunk in chunks:
        at += len(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk))
        ends.add(at)
    assert boundaries <= ends | {len(data)}
    assert len(data) in boundaries


@given(payloads, st.data())
def test_a_boundary_is_the_last_whole_chunk(chunks, data):
    raw = encode(chunks)
    stop = data.draw(st.integers(0, len(raw) - 1))
    body = ChunkedBody()
    boundary = body.feed(raw[:stop])
    ends, at = [0], 0
    for chunk in chunks:
        at += len(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        ends.append(at)
    assert boundary == max(end for end in ends if end <= stop)
    assert not body.eof()


@pytest.mark.parametrize("line", [b"%x", b"%X", b"0%x", b"%x;a=b"])
def test_chunks_that_come_one_by_one(line):
    chunks = [b"\n" * length for length in (1, 4, 15, 16, 255, 256, 4095, 4096, 65536)]
    body, payload = ChunkedBody(), []
    for chunk in chunks:
        data = (line % len(chunk)) + b"\r\n" + chunk + b"\r\n"
        assert body.feed(data, payload) == len(data)
    assert body.feed(b"0\r\n\r\n", payload) == 5
    assert (body.ended, payload) == (True, chunks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x3\r\nabc\r\n",
        b"3\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"1_0\r\n",
        b"+3\r\n",
        b"f" * 16 + b"\r\n",
    ],
)
@given(sizes=cuts)
def test_broken_chunks(data, sizes):
    body = ChunkedBody()
    with pytest.raises(FramingError):
        for part in cut(data + b"0\r\n\r\n", sizes):
            body.feed(part)


@given(cuts)
def test_bytes_after_the_end(sizes):
    body = ChunkedBody()
    with pytest.raises(FramingError):
        for part in cut(b"0\r\n\r\nx", sizes):
            body.feed(part)
    body = LengthBody(3)
    with pytest.raises(FramingError):
        for part in cut(b"abcd", sizes):
            body.feed(part)


@given(st.binary(min_size=1, max_size=50), cuts)
def test_length_and_close(data, sizes):
    for body in (LengthBody(len(data)), CloseBody()):
        payload = []
        for part in cut(data, sizes):
            assert not body.ended
            body.feed(part, payload)
        assert body.eof()
        assert b"".join(payload) == data


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b'data: {"a":1}\n\ndata: x\n\n', b'{"a":1}'),
        (b": ping\n\ndata: x\r\n\r\n", b"x"),
        (b"event: e\r\ndata:x\r\ndata: y\r\n\r\n", b"x\ny"),
        (b"id: 1\n\n\ndata:  z\n\n", b" z"),
        (b"data: a\rdata: b\r\rdata: c\n\n", b"a\nb"),
        (b"retry: 1\n\n", None),
    ],
)
@given(sizes=cuts)
def test_first_event(stream, data, sizes):
    found = FirstEvent()
    for part in cut(stream, sizes):
        found.feed(part)
    assert found.data == data
    assert found.decided == (data is not None)


@given(cuts)
def test_events_that_do_not_count_are_skipped(sizes):
    found = FirstEvent(skip=lambda data: data == b"role")
    for part in cut(b"data: role\n\n: ping\n\ndata: role\n\ndata: x\n\ndata: y\n\n", sizes):
        found.feed(part)
    assert found.data == b"x"


@given(cuts)
def test_a_first_event_without_end_is_given_up(sizes):
    found = FirstEvent(limit=50)
    for part in cut(b"data: " + b"x" * 60 + b"\n\n", sizes):
        found.feed(part)
    assert found.decided
    assert found.data is None


class Forwarded:
    """What a client gets of a chunked response, as its legs pass it on."""

    def __init__(self):
        self.body = ChunkedBody()
        self.relay = Relay(self.body, dechunk=False)
        self.out = []

    def feed(self, part):
        out = self.relay.pass_on(part, self.body.feed(part))
        if out:
            self.out.append(out)


@given(payloads, cuts)
def test_a_relay_forwards_every_byte_and_only_whole_chunks(chunks, sizes):
    raw, forwarded = encode(chunks), Forwarded()
    for part in cut(raw, sizes):
        forwarded.feed(part)
        probe, joined = ChunkedBody(), b"".join(forwarded.out)
        assert not joined or probe.feed(joined) == len(joined)
    assert b"".join(forwarded.out) == raw


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_an_error_event_closes_any_prefix_of_a_stream(texts, data):
    events = [b"data: " + text.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n" for text in texts]
    raw, forwarded = encode(events), Forwarded()
    stop = data.draw(st.integers(0, len(raw) - 6))
    for part in cut(raw[:stop], data.draw(cuts)):
        forwarded.feed(part)
    payload, body = [], ChunkedBody()
    body.feed(b"".join([*forwarded.out, forwarded.relay.ending("it died")]), payload)
    assert body.ended
    received = b"".join(payload)
    *whole, error, rest = received.split(b"\n\n")
    assert rest == b""
    assert b"it died" in error
    assert [event + b"\n\n" for event in whole] == events[: len(whole)]


@pytest.mark.parametrize("said", [b"", b"event: x\ndata: {}\n\n"])
@pytest.mark.parametrize(
    ("begin", "last"),
    [
        (b"data: [DONE]", b"data: [DONE]\n\n"),
        (b"event: message_stop", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        (b"event: response.completed", b'event: response.completed\ndata: {"response":{}}\n\n'),
    ],
)
@pytest.mark.parametrize(("dechunk", "end"), [(False, b"0\r\n\r\n"), (True, b"")])
def test_nothing_is_said_after_a_stream_that_said_all(dechunk, end, begin, last, said):
    relay = Relay(ChunkedBody(), dechunk=dechunk)
    events = [said, last] if said else [last]
    data = b"".join(events) if dechunk else encode(events)[:-5]
    relay.pass_on(data, len(data))
    assert relay.ending("it died", (begin,), named=True) == end


@pytest.mark.parametrize("dechunk", [False, True])
def test_words_within_an_event_do_not_end_a_stream(dechunk):
    relay = Relay(ChunkedBody(), dechunk=dechunk)
    text = b'event: x\ndata: {"delta":"event: message_stop data: [DONE]"}\n\n'
    data = text if dechunk else encode([text])[:-5]
    relay.pass_on(data, len(data))
    for begin in (b"data: [DONE]", b"event: message_stop"):
        said = relay.ending("it died", (begin,), named=True)
        assert b"event: error\ndata: {" in said


def test_a_chunk_too_large_to_hold_back_is_passed_on_and_leaves_no_clean_end():
    forwarded = Forwarded()
    forwarded.feed(b"20000\r\n" + b"x" * 70000)
    assert sum(map(len, forwarded.out)) > 70000
    assert forwarded.relay.ending("it died") is None
    forwarded.feed(b"x" * (0x20000 - 70000) + b"\r\n")
    assert forwarded.relay.ending("it died") is not None


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK",
        b"HTTP/1.1 xx OK",
        b"HTTP/1.1 200 OK\r\nbroken",
        b"HTTP/1.1 200 OK\r\n name: x",
        b"HTTP/1.1 200 OK\r\nname : x",
        b"HTTP/1.1 200 OK\r\ncontent-length: x",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\na: b\nc: d",
    ],
)
def test_heads_that_are_refused(head):
    with pytest.raises(FramingError):
        parse_head(head)


def test_heads():
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; x\r\nTransfer-Encoding: Chunked")
    assert (head.status, head.keep_alive, head.is_event_stream) == (200, True, True)
    assert isinstance(head.body, ChunkedBody)
    assert not parse_head(b"HTTP/1.0 200 OK\r\ncontent-length: 1").keep_alive
    assert not parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: Close").keep_alive
    assert isinstance(parse_head(b"HTTP/1.1 200").body, CloseBody)
    assert parse_head(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9").body.ended
    headers = [(b"connection", b"x-a, close"), (b"x-a", b"1"), (b"te", b"x"), (b"b", b"2"), (b"c", b"3")]
    assert end_to_end(headers, frozenset((b"c",))) == [(b"b", b"2")]
    assert write_head(299, [(b"a", b"b")]) == b"HTTP/1.1 299 Status\r\na: b\r\n\r\n"

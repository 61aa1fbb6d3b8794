"""The benchmark of heavy load gives no figures where streams or arrivals were not what its rows name."""

import asyncio
from functools import partial

import pytest

from eldr_bench import heavy
from eldr_bench.mocks import Mock, Served
from eldr_bench.proof import Unproven

STREAMS, INTERVAL = 6, 0.05


@pytest.fixture
async def engine(monkeypatch):
    """The port of an engine that streams; the load is small, and opened at once."""
    for name, value in {"STREAMS": STREAMS, "TOKENS": 40, "OPENING_SECONDS": 0.1, "CHUNKS": 120}.items():
        monkeypatch.setattr(heavy, name, value)
    served = Served(2, 4)
    served.interval = INTERVAL
    loop = asyncio.get_running_loop()
    async with await loop.create_server(partial(Mock, served, prefill=False), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_delays_are_those_of_chunks(engine, monkeypatch):
    monkeypatch.setattr(heavy, "REACHED", 0.1)  # of a busy machine
    p99, memory = await heavy.stream_all("engines", [engine], None)
    assert p99 > 0
    assert memory == 0


async def test_too_few_chunks_are_told(engine, monkeypatch):
    monkeypatch.setattr(heavy, "CHUNKS", 100_000)
    with pytest.raises(Unproven, match="chunks/s instead of 100000"):
        await heavy.stream_all("engines", [engine], None)


TOKEN = b'data: {"sent": "%060x"}\n\n' % 5


def stream(delays):
    made = heavy.Stream(b"", delays)
    made.connection_made(type("Transport", (), {"write": lambda *_: None, "close": lambda _: None})())
    return made


async def test_a_chunk_that_comes_in_pieces_counts_once():
    whole = b"HTTP/1.1 200 OK\r\n\r\n" + 3 * TOKEN + b"0\r\n\r\n"
    for at in range(1, len(whole)):
        delays = []
        read = stream(delays)
        read.data_received(whole[:at])
        read.data_received(whole[at:])
        assert len(delays) == 3
        assert await read.ended


@pytest.mark.parametrize("data", [b"HTTP/1.1 429 No\r\n\r\n0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_stream_that_is_refused_or_cut_is_told(data):
    read = stream([])
    read.data_received(data)
    read.connection_lost(None)
    assert not await read.ended

"""The ring between an engine's processes: bounded, checked, and clean after a killed writer."""

import json
import multiprocessing
import os
import signal

import pytest

from eldr.engine.decode.records import page
from eldr.engine.decode.ring import RingReader, RingWriter, path_of


@pytest.fixture
def writer(tmp_path):
    ring = RingWriter(path_of("i", tmp_path), slots=4, slot_bytes=64)
    yield ring
    ring.close()


@pytest.fixture
def reader(tmp_path, writer):
    ring = RingReader(path_of("i", tmp_path))
    yield ring
    ring.close()


def test_records_come_back_in_order_until_they_are_overwritten(writer, reader):
    for n in range(6):
        assert writer.write(b"record %d" % n)
    assert (reader.oldest, reader.written) == (2, 6)
    assert [reader.get(n) for n in range(2, 6)] == [b"record %d" % n for n in range(2, 6)]
    assert reader.get(1) is None


def test_a_record_that_is_too_long_is_refused_and_changes_nothing(writer, reader):
    assert writer.write(b"x" * 64)
    assert not writer.write(b"x" * 129)
    assert reader.written == 1


def test_a_damaged_record_is_not_returned(tmp_path, writer, reader):
    writer.write(b"first")
    writer.write(b"second")
    path = path_of("i", tmp_path)
    damaged = path.read_bytes().replace(b"first", b"fIrst")
    with path.open("r+b") as file:
        file.write(damaged)
    assert reader.get(0) is None
    assert reader.get(1) == b"second"


def test_something_else_is_not_read_as_a_ring(tmp_path):
    (tmp_path / "other").write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="not an ELDR ring"):
        RingReader(tmp_path / "other")


def _hold(folder, ready):
    RingWriter(path_of("killed", folder), slots=4, slot_bytes=64)
    ready.set()
    signal.pause()


@pytest.mark.process
@pytest.mark.slow
def test_the_ring_of_a_killed_writer_is_removed_by_the_next_one_that_of_a_living_one_is_not(tmp_path, writer):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(target=_hold, args=(tmp_path, ready))
    child.start()
    assert ready.wait(60)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    child.close()
    assert path_of("killed", tmp_path).exists()
    RingWriter(path_of("next", tmp_path), slots=4, slot_bytes=64).close()
    assert list(tmp_path.iterdir()) == [path_of("i", tmp_path)]


def _write(folder, ready, go):
    ring = RingWriter(path_of("fast", folder), slots=8, slot_bytes=256)
    ready.set()
    go.wait()
    for n in range(20_000):
        ring.write(json.dumps({"n": n, "pad": "x" * (n % 200)}).encode())
    signal.pause()


@pytest.mark.process
@pytest.mark.slow
def test_a_reader_that_is_overtaken_loses_records_and_never_reads_half_of_one(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    child = context.Process(target=_write, args=(tmp_path, ready, go))
    child.start()
    try:
        assert ready.wait(60)
        ring = RingReader(path_of("fast", tmp_path))
        go.set()
        cursor = read = lost = 0
        while cursor < 20_000:
            start = max(cursor, ring.oldest)
            lost += start - cursor
            for number in range(start, ring.written):
                raw = ring.get(number)
                if raw is None:
                    lost += 1
                else:
                    value = json.loads(raw)
                    assert value == {"n": number, "pad": "x" * (number % 200)}
                    read += 1
                start = number + 1
            cursor = start
        ring.close()
        assert read + lost == 20_000
        assert read >= 8
    finally:
        child.kill()
        child.join()
        child.close()


def record(router: str, n: int) -> bytes:
    return json.dumps({"request_id": f"cmpl-eldr-{router}-{n:x}-1-0-0a1b2c3d", "tokens": n}).encode()


def test_pages_go_by_cursor_prefix_rate_and_boot(tmp_path):
    writer = RingWriter(path_of("p", tmp_path), slots=4, slot_bytes=256)
    reader = RingReader(path_of("p", tmp_path))
    for n in range(6):
        writer.write(record("aaaaaaaa" if n % 2 else "bbbbbbbb", n))
    first = page([reader], after="0", limit=2)
    assert [r["request_id"] for r in first["records"]] == ["eldr-bbbbbbbb-2", "eldr-aaaaaaaa-3"]
    assert (first["lost"], first["next"], first["v"]) == (2, 4, 1)
    rest = page([reader], after=str(first["next"]), limit=9, boot=first["boot"])
    assert [r["tokens"] for r in rest["records"]] == [4, 5]
    assert rest["lost"] == 0
    own = page([reader], after="0", limit=9, prefix="eldr-aaaaaaaa-")
    assert [r["tokens"] for r in own["records"]] == [3, 5]
    assert page([reader], after="0", limit=9, rate=0.0)["records"] == []
    assert page([reader], after="6", limit=9)["next"] == 6
    for after, boot in (("5", "another"), ("7", "")):  # cursors from before a restart
        anew = page([reader], after=after, limit=9, boot=boot)
        assert [r["tokens"] for r in anew["records"]] == [2, 3, 4, 5]
        assert anew["next"] == 6
    writer.close()
    reader.close()

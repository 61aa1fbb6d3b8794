"""The rings of several ranks as one: nothing twice, nothing lost unsaid, in the order in which it was seen."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from eldr.engine.decode.records import page
from eldr.engine.decode.ring import RingReader, RingWriter, rings_of
from eldr.engine.decode.rings import MergedRings


@pytest.fixture
def writers(tmp_path):
    found = [RingWriter(tmp_path / f"{rank}", slots=4, slot_bytes=64) for rank in range(2)]
    yield found
    for ring in found:
        ring.close()


@pytest.fixture
def merged(tmp_path, writers):
    return MergedRings([RingReader(tmp_path / f"{rank}") for rank in range(2)])


def write(writer, *names):
    for name in names:
        assert writer.write(json.dumps({"request_id": name}).encode())


def read(merged, after=0, **fields):
    found = page(merged, after=after, limit=64, **fields)
    return [record["request_id"] for record in found["records"]], found["next"], found["lost"]


def test_each_rank_has_its_ring():
    assert [path.name for path in rings_of("i", 1)] == ["eldr-activations-i"]
    assert [path.name for path in rings_of("i", 2)] == ["eldr-activations-i-dp0", "eldr-activations-i-dp1"]


def test_records_of_all_ranks_come_once_each(writers, merged):
    write(writers[0], "a", "b")
    write(writers[1], "c")
    names, cursor, lost = read(merged)
    assert (sorted(names), cursor, lost) == (["a", "b", "c"], 3, 0)
    write(writers[1], "d")
    assert read(merged, cursor, boot=merged.boot) == (["d"], 4, 0)
    assert read(merged, 0)[0] == [*names, "d"], "an order that was given stays"


def test_what_was_overwritten_counts_as_lost(writers, merged):
    write(writers[0], *"abc")
    assert read(merged)[1:] == (3, 0)
    write(writers[0], *"defghi")  # a ring of four holds the last four
    names, cursor, lost = read(merged, 3)
    assert (names, cursor, lost) == (["f", "g", "h", "i"], 9, 2)


def test_another_reader_begins_anew(tmp_path, writers, merged):
    write(writers[0], "a")
    write(writers[1], "b")
    _, cursor, _ = read(merged)
    other = MergedRings([RingReader(tmp_path / f"{rank}") for rank in range(2)])
    assert other.boot != merged.boot
    assert sorted(read(other, cursor, boot=merged.boot)[0]) == ["a", "b"]


def test_threads_that_read_at_once_number_nothing_twice(writers, merged):
    write(writers[0], *"abcd")
    write(writers[1], *"efgh")
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda _: read(merged)[0], range(64)))
    assert all(sorted(names) == list("abcdefgh") for names in pages)
    assert all(names == pages[0] for names in pages)

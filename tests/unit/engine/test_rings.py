"""The rings of several ranks by one cursor: nothing twice, nothing lost unsaid, whichever API server is asked."""

import json

import pytest

from eldr.engine.decode.records import boot_of, page
from eldr.engine.decode.ring import RingReader, RingWriter, rings_of


@pytest.fixture
def writers(tmp_path):
    found = [RingWriter(tmp_path / f"{rank}", slots=4, slot_bytes=64) for rank in range(2)]
    yield found
    for ring in found:
        ring.close()


@pytest.fixture
def server(tmp_path, writers):
    """Return what an API server reads; each has readers of its own."""
    return lambda: [RingReader(tmp_path / f"{rank}") for rank in range(2)]


def write(writer, *names):
    for name in names:
        assert writer.write(json.dumps({"request_id": name}).encode())


def read(rings, after="0", limit=64, **fields):
    found = page(rings, after=after, limit=limit, **fields)
    return [record["request_id"] for record in found["records"]], found["next"], found["lost"]


def test_each_rank_has_its_ring():
    assert [path.name for path in rings_of("i", 1)] == ["eldr-activations-i"]
    both = ["eldr-activations-i-dp0", "eldr-activations-i-dp1"]
    for engine_id in ("i", "i_dp0", "i_dp1"):
        assert [path.name for path in rings_of(engine_id, 2)] == both, (
            "as an API server and either rank call it"
        )
    assert rings_of("a/../b", 1)[0].parent == rings_of("i", 1)[0].parent


def test_records_of_all_ranks_come_once_each_whichever_server_is_asked(writers, server):
    one, other = server(), server()
    write(writers[0], "a", "b")
    write(writers[1], "c")
    assert read(one) == (["a", "b", "c"], "2.1", 0)
    write(writers[1], "d")
    assert boot_of(one) == boot_of(other)
    assert read(other, "2.1", boot=boot_of(one)) == (["d"], "2.2", 0)
    assert read(one, "2.2", boot=boot_of(one)) == ([], "2.2", 0)


def test_a_page_that_is_full_goes_on_in_the_next(writers, server):
    write(writers[0], *"abc")
    write(writers[1], *"de")
    names, cursor = [], "0.0"
    for _ in range(3):
        more, cursor, lost = read(server(), cursor, limit=2)
        assert len(more) <= 2
        assert not lost
        names += more
    assert (names, cursor) == (list("abcde"), "3.2")


def test_what_was_overwritten_counts_as_lost(writers, server):
    write(writers[0], *"abc")
    assert read(server())[1:] == ("3.0", 0)
    write(writers[0], *"defghi")  # a ring of four holds the last four
    assert read(server(), "3.0") == (["f", "g", "h", "i"], "9.0", 2)


@pytest.mark.parametrize("cursor", ["0", "5", "1.1.1", "9.0", "0.9"])
def test_a_cursor_of_another_engine_begins_anew(writers, server, cursor):
    write(writers[0], "a")
    write(writers[1], "b")
    assert read(server(), cursor) == (["a", "b"], "1.1", 0)


def test_where_one_rank_is_new_reading_begins_anew(tmp_path, writers, server):
    write(writers[0], "a")
    before = boot_of(server())
    writers[1].close()
    writers[1] = RingWriter(tmp_path / "1", slots=4, slot_bytes=64)
    assert boot_of(server()) != before
    assert read(server(), "1.0", boot=before) == (["a"], "1.0", 0)

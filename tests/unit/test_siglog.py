import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eldr import siglog
from eldr.siglog import FrameReader, Record, SignatureLog, frame, pack_counts, read


def record(n: int, layers: int = 2, experts: int = 4, **fields) -> Record:
    counts = np.arange(layers * experts, dtype=np.uint16).reshape(layers, experts) + n
    return Record(
        request_id=f"eldr-00000000-{n:x}",
        time=1000.0 + n,
        model="m",
        n_layers=layers,
        n_experts=experts,
        top_k=2,
        prompt_tokens=7,
        exact=True,
        prefill=pack_counts(counts),
        engine="d0",
        slot=0,
        policy="JSQ",
        **fields,
    )


def open_log(path, **fields) -> SignatureLog:
    return SignatureLog(path, **{"max_bytes": 1 << 20, "max_age": 3600.0, "now": 1000.0} | fields)


def test_round_trip_and_order(tmp_path):
    log = open_log(tmp_path)
    wanted = [
        record(n, decode=pack_counts(np.full((2, 4), 9, np.uint32)), decode_tokens=18) for n in range(50)
    ]
    for item in wanted:
        log.append(item, now=1000.0)
    assert list(read(tmp_path)) == wanted
    assert len(log) == 50
    log.close()
    got = next(read(tmp_path))
    assert got.prefill_counts().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert got.decode_counts().sum() == 72


def test_record_has_no_place_for_text():
    texts = {f.name for f in msgspec.structs.fields(Record) if f.type is str}
    assert texts == {"request_id", "model", "engine", "policy"}


def test_counts_of_a_wrong_length_are_refused():
    bad = msgspec.structs.replace(record(0), prefill=b"123")
    with pytest.raises(ValueError, match="prefill: 3 bytes do not hold 2 x 4 counts"):
        bad.prefill_counts()


def test_size_bound_drops_the_oldest(tmp_path):
    log = open_log(tmp_path, max_bytes=1 << 16)
    for n in range(200):
        log.append(record(n, 8, 128), now=1000.0)
    assert sum(path.stat().st_size for path in log.paths()) <= (1 << 16) + (1 << 15)
    kept = [int(r.request_id.rsplit("-", 1)[1], 16) for r in read(tmp_path)]
    assert kept == list(range(200 - len(kept), 200))
    assert len(log) == len(kept) < 200
    log.close()


def test_size_bound_drops_no_more_than_it_must(tmp_path):
    bound, segment = 1 << 18, 1 << 15
    log = open_log(tmp_path, max_bytes=bound)
    sizes = []
    for n in range(400):
        log.append(record(n, 8, 128), now=1000.0)
        sizes.append(sum(path.stat().st_size for path in log.paths()))
    log.close()
    full = next(at for at, size in enumerate(sizes) if size > bound - segment)
    assert min(sizes[full:]) > bound - 2 * segment


def test_age_bound_drops_old_segments_after_a_restart(tmp_path):
    log = open_log(tmp_path)
    log.append(record(1), now=1000.0)
    log.close()
    os.utime(log.paths()[0], (1000.0, 1000.0))
    assert len(open_closed(tmp_path, now=1000.0 + 3599)) == 1
    os.utime(log.paths()[0], (1000.0, 1000.0))
    assert len(open_closed(tmp_path, now=1000.0 + 3601)) == 0


def open_closed(path, **fields) -> SignatureLog:
    log = open_log(path, **fields)
    log.close()
    return log


@given(cut=st.integers(min_value=0))
def test_a_kill_at_any_byte_loses_only_the_torn_record(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log")
    log = open_log(path)
    ends = [0]
    for n in range(5):
        log.append(record(n), now=1000.0)
        ends.append(log.paths()[0].stat().st_size)
    log.close()
    segment = log.paths()[0]
    cut %= ends[-1] + 1
    with segment.open("r+b") as file:
        file.truncate(cut)
    whole = sum(1 for end in ends[1:] if end <= cut)
    assert len(list(read(path))) == whole
    again = open_log(path)
    again.append(record(99), now=1000.0)
    again.close()
    joined = b"".join(p.read_bytes() for p in again.paths())
    reader = FrameReader()
    assert [r.request_id for r in reader.feed(joined)] == [
        f"eldr-00000000-{n:x}" for n in [*range(whole), 99]
    ]
    assert reader.damaged is None
    for p in path.iterdir():
        p.unlink()


@pytest.mark.process
@pytest.mark.slow
def test_kill_minus_nine_while_appending(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from tests.unit.test_siglog import open_log, record\n"
        "log = open_log(Path(sys.argv[1])); n = 0\n"
        "while True:\n    log.append(record(n), now=time.time()); n += 1\n    if n == 100: print('go', flush=True)\n"
    )
    root = str(Path(__file__).parents[2])
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), root], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"go\n"
    child.kill()
    child.wait()
    child.stdout.close()
    ids = [int(r.request_id.rsplit("-", 1)[1], 16) for r in read(tmp_path)]
    assert len(ids) >= 100
    assert ids == list(range(ids[0], ids[0] + len(ids)))


@given(data=st.binary(max_size=400))
def test_garbage_never_crashes_a_reader(data):
    reader = FrameReader()
    list(reader.feed(data))
    assert reader.valid_bytes <= len(data)


def test_a_damaged_frame_ends_the_stream_with_a_reason():
    good, bad = frame(record(1)), bytearray(frame(record(2)))
    bad[-1] ^= 1
    reader = FrameReader()
    assert len(list(reader.feed(good + bytes(bad) + good))) == 1
    assert reader.damaged == "checksum mismatch"
    assert reader.valid_bytes == len(good)


def test_frames_arrive_in_any_pieces():
    data = b"".join(frame(record(n)) for n in range(3))
    reader = FrameReader()
    got = [r for at in range(len(data)) for r in reader.feed(data[at : at + 1])]
    assert got == [record(n) for n in range(3)]


def test_too_small_a_bound_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_bytes"):
        open_log(tmp_path, max_bytes=10)
    assert siglog.segments(tmp_path) == []

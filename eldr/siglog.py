"""The signature log: sampled requests with their expert counts, never prompt text.

Append-only segments of frames ``u32 length, u32 crc32, msgpack record`` (little-endian). A writer always opens a new
segment and first cuts what a kill left torn at the end of old ones, so that all segments joined are one clean stream.
Complete segments are dropped, oldest first, by total size and age.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

_FRAME = struct.Struct("<II")
_MAX_FRAME = 1 << 24
_CHUNK = 1 << 18
_SUFFIX = ".siglog"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled request.

    Attributes
    ----------
    request_id : str
        Base id (see :func:`eldr.contract.base_id`).
    time : float
        Unix time of the request's arrival, seconds.
    model : str
        Served name.
    prompt_tokens : int
        Tokens that ``prefill`` counts.
    exact : bool
        Whether the prefill engine vouched for the counts.
    prefill : bytes
        Little-endian uint16 or uint32 counts, shape (n_layers, n_experts).
    engine : str
        Decode engine that served the request; ``slot`` is its index.
    similarity : float or None
        Cosine to the chosen engine's centroid.
    in_flight : int
        Requests in flight at that engine when it was chosen.
    decode : bytes or None
        Counts of the generated tokens, as ``prefill``; None when the engine did not report them.
    decode_tokens : int
        Tokens that ``decode`` counts.
    decode_exact : bool
        Whether the decode engine vouched for them.
    prefill_seconds, first_byte_seconds, total_seconds : float
        Time from the request's arrival to the prefill answer, the first decoded byte and the end.
    """

    request_id: str
    time: float
    model: str
    n_layers: int
    n_experts: int
    top_k: int
    prompt_tokens: int
    exact: bool
    prefill: bytes
    engine: str
    slot: int
    policy: str
    similarity: float | None = None
    in_flight: int = 0
    decode: bytes | None = None
    decode_tokens: int = 0
    decode_exact: bool = False
    prefill_seconds: float = 0.0
    first_byte_seconds: float = 0.0
    total_seconds: float = 0.0

    def prefill_counts(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the prompt's counts, shape (n_layers, n_experts); ValueError if the bytes disagree."""
        return _counts("prefill", self.prefill, self.n_layers, self.n_experts)

    def decode_counts(self) -> npt.NDArray[np.unsignedinteger] | None:
        """Return the generated tokens' counts, or None; ValueError if the bytes disagree."""
        return None if self.decode is None else _counts("decode", self.decode, self.n_layers, self.n_experts)


def pack_counts(counts: npt.NDArray[np.unsignedinteger]) -> bytes:
    """Return counts as a record stores them."""
    return np.ascontiguousarray(counts, dtype=counts.dtype.newbyteorder("<")).tobytes()


def _counts(name: str, raw: bytes, layers: int, experts: int) -> npt.NDArray[np.unsignedinteger]:
    cells = layers * experts
    dtype = {2: "<u2", 4: "<u4"}.get(len(raw) // cells if cells > 0 and len(raw) % cells == 0 else 0)
    if dtype is None:
        raise ValueError(f"{name}: {len(raw)} bytes do not hold {layers} x {experts} counts of 2 or 4 bytes")
    return np.frombuffer(raw, dtype).reshape(layers, experts)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def frame(record: Record) -> bytes:
    """Return a record as one frame."""
    payload = _encode(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class FrameReader:
    """Incremental reader of frames, for files and HTTP bodies alike.

    A damaged frame ends a stream: lengths after it cannot be trusted. ``damaged`` then holds the reason, and
    ``valid_bytes`` counts the bytes of the good frames before it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.damaged: str | None = None
        self.valid_bytes = 0

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that ``data`` completes."""
        if self.damaged is not None:
            return
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _FRAME.size:
            length, crc = _FRAME.unpack_from(self._buffer, at)
            if length > _MAX_FRAME:
                self.damaged = f"frame of {length} bytes"
                break
            if len(self._buffer) - at - _FRAME.size < length:
                break
            payload = bytes(self._buffer[at + _FRAME.size : at + _FRAME.size + length])
            if zlib.crc32(payload) != crc:
                self.damaged = "checksum mismatch"
                break
            try:
                record = _decode(payload)
            except msgspec.MsgspecError as error:
                self.damaged = f"not a record: {error}"
                break
            at += _FRAME.size + length
            self.valid_bytes += _FRAME.size + length
            yield record
        del self._buffer[:at]


class SignatureLog:
    """Bounded, append-only log in a directory of its own.

    Parameters
    ----------
    directory : Path
        Created if missing. One writer at a time.
    max_bytes : int
        Bound of all segments together.
    max_age : float
        Segments whose newest record is older are dropped, seconds.
    now : float
        Unix time.

    Raises
    ------
    OSError
        If the directory cannot be written.
    """

    def __init__(self, directory: Path, *, max_bytes: int, max_age: float, now: float) -> None:
        if max_bytes < 1 << 16:
            raise ValueError(f"max_bytes: expected at least 65536, got {max_bytes}")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._segment_bytes = max(1 << 15, max_bytes // 8)
        self._records: dict[Path, int] = {path: _cut(path) for path in segments(directory)}
        self._sizes: dict[Path, int] = {path: path.stat().st_size for path in self._records}
        self._newest: dict[Path, float] = {path: path.stat().st_mtime for path in self._records}
        last = max((int(path.stem) for path in self._records), default=-1)
        self._open(last + 1)
        self.expire(now)

    def _open(self, number: int) -> None:
        self._path = self._directory / f"{number:012d}{_SUFFIX}"
        self._file = self._path.open("xb", buffering=0)
        self._records[self._path] = self._sizes[self._path] = 0
        self._newest[self._path] = float("inf")

    def append(self, record: Record, now: float) -> None:
        """Append one record and keep the bounds."""
        data = frame(record)
        if self._sizes[self._path] and self._sizes[self._path] + len(data) > self._segment_bytes:
            self._file.close()
            self._newest[self._path] = now
            self._open(int(self._path.stem) + 1)
        self._file.write(data)
        self._sizes[self._path] += len(data)
        self._records[self._path] += 1
        self.expire(now)

    def expire(self, now: float) -> None:
        """Drop the oldest segments until size and age are within bounds; the one being written stays."""
        total = sum(self._sizes.values())
        for path in sorted(self._sizes):
            if path == self._path:
                break
            if total <= self._max_bytes and self._newest[path] >= now - self._max_age:
                break
            path.unlink(missing_ok=True)
            total -= self._sizes.pop(path)
            del self._records[path], self._newest[path]

    def __len__(self) -> int:
        """Count the records retained."""
        return sum(self._records.values())

    def paths(self) -> list[Path]:
        """Segments, oldest first; each may disappear or grow while it is read."""
        return sorted(self._sizes)

    def close(self) -> None:
        """Close the segment being written."""
        self._file.close()


def segments(directory: Path) -> list[Path]:
    """Return a log's segments, oldest first."""
    return sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdigit())


def _cut(path: Path) -> int:
    """Truncate a segment after its last good frame and return how many records it holds."""
    reader = FrameReader()
    records = 0
    with path.open("r+b") as file:
        modified = path.stat().st_mtime
        while data := file.read(_CHUNK):
            records += sum(1 for _ in reader.feed(data))
        if file.seek(0, os.SEEK_END) != reader.valid_bytes:
            file.truncate(reader.valid_bytes)
            os.utime(path, (modified, modified))
    return records


def read(directory: Path) -> Iterator[Record]:
    """Yield all records of a log directory, oldest first; of each segment up to its end or first damaged frame."""
    for path in segments(directory):
        reader = FrameReader()
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                yield from reader.feed(data)

"""Finished requests on their way from the scheduler's process to the API server: a bounded ring in shared memory.

One writer, any number of readers, no locks. Every record carries a checksum over its number and bytes, so a reader that
is overtaken, or a machine that reorders stores, is noticed and the record counted as lost. A killed writer leaves its
file behind; the next one that starts removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import struct
import uuid
import zlib
from pathlib import Path
from urllib.parse import quote

_MAGIC = b"eldrring"
_HEADER = struct.Struct("<8s16sQQ")  # magic, boot, slots, bytes per slot
_WRITTEN = 48  # offset of the u64 that counts records ever written
_COUNT = struct.Struct("<Q")
_START = 64
_SLOT = struct.Struct("<QII")  # number + 1 (0: being written), length, checksum
_PREFIX = "eldr-activations-"


def path_of(engine: str, folder: Path = Path("/dev/shm")) -> Path:  # noqa: S108 - shared memory is the point
    """Return where an engine keeps its ring."""
    return folder / f"{_PREFIX}{quote(engine, safe='')}"


def rings_of(engine_id: str, ranks: int) -> list[Path]:
    """Return where the data-parallel ranks of an engine keep their rings; each has requests of its own.

    Parameters
    ----------
    engine_id : str
        The transport's, which schedulers and API servers share; ranks have theirs behind it.
    """
    engine = re.sub(r"_dp[0-9]+$", "", engine_id)
    if ranks == 1:
        return [path_of(engine)]
    return [path_of(f"{engine}-dp{rank}") for rank in range(ranks)]


class RingWriter:
    """The scheduler's end.

    Parameters
    ----------
    slots : int
        Records kept.
    slot_bytes : int
        Longest record.

    Raises
    ------
    OSError
        If the shared memory cannot be had; mount a larger ``/dev/shm``.
    """

    def __init__(self, path: Path, slots: int, slot_bytes: int) -> None:
        stride = -(-(slot_bytes + _SLOT.size) // 8) * 8
        self._path = path
        _sweep(path.parent)
        beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # not swept, until it is locked
        self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # while the writer lives
        try:
            # reserved, not sparse: a full /dev/shm must fail here, not kill the engine by a signal later
            os.posix_fallocate(self._fd, 0, _START + slots * stride)
            self._memory = mmap.mmap(self._fd, 0)
        except OSError:
            os.close(self._fd)
            beside.unlink(missing_ok=True)
            raise
        self._slots, self._stride, self._written = slots, stride, 0
        self._memory[: _HEADER.size] = _HEADER.pack(_MAGIC, uuid.uuid4().bytes, slots, stride)
        beside.replace(path)

    def write(self, record: bytes) -> bool:
        """Append a record; False if it is longer than a slot."""
        if len(record) > self._stride - _SLOT.size:
            return False
        number = self._written
        offset = _START + number % self._slots * self._stride
        _store(self._memory, offset, 0)
        self._memory[offset + _SLOT.size : offset + _SLOT.size + len(record)] = record
        self._memory[offset : offset + _SLOT.size] = _SLOT.pack(
            number + 1, len(record), _checksum(number, record)
        )
        self._written += 1
        _store(self._memory, _WRITTEN, self._written)
        return True

    def close(self) -> None:
        """Remove the ring."""
        self._path.unlink(missing_ok=True)
        self._memory.close()
        os.close(self._fd)


class RingReader:
    """The API server's end.

    Raises
    ------
    FileNotFoundError
        If no engine made the ring.
    ValueError
        If the file is not a ring.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, boot, slots, stride = _HEADER.unpack_from(self._memory)
        if magic != _MAGIC:
            raise ValueError(f"{path}: not an ELDR ring")
        self.boot = uuid.UUID(bytes=boot).hex
        self._slots, self._stride = int(slots), int(stride)

    @property
    def slots(self) -> int:
        """Records that it holds."""
        return self._slots

    @property
    def written(self) -> int:
        """Records ever written."""
        (count,) = _COUNT.unpack_from(self._memory, _WRITTEN)
        return int(count)

    @property
    def oldest(self) -> int:
        """Number of the oldest record kept."""
        return max(0, self.written - self._slots)

    def get(self, number: int) -> bytes | None:
        """Return a record, or None if it was overwritten meanwhile."""
        offset = _START + number % self._slots * self._stride
        stamp, length, checksum = _SLOT.unpack_from(self._memory, offset)
        if stamp != number + 1 or length > self._stride - _SLOT.size:
            return None
        record = self._memory[offset + _SLOT.size : offset + _SLOT.size + length]
        return record if _checksum(number, record) == checksum else None

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


def _store(memory: mmap.mmap, offset: int, value: int) -> None:
    memory[offset : offset + 8] = _COUNT.pack(value)


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, number & 0xFFFFFFFF)


def _sweep(folder: Path) -> None:
    """Remove rings whose writers were killed: their lock is free."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)

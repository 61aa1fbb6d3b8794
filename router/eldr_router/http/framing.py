"""Where messages end: incremental trackers of HTTP bodies.

Pure. Every tracker gives the same result however its input is cut into reads; the tests prove it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

_MAX_LINE = 8192
_HEX = frozenset(b"0123456789abcdefABCDEF")


class FramingError(ValueError):
    """A response breaks HTTP; its connection is of no more use."""


class Tracker(Protocol):
    """A tracker of one response body."""

    ended: bool
    splittable: bool
    """Whether the receiver, too, can tell where the body ends (so that it may be cut only at a boundary)."""

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> int:
        """Take the next bytes.

        Parameters
        ----------
        data : bytes
        payload : list of bytes, optional
            Decoded body parts are appended to it.

        Returns
        -------
        int
            Offset in ``data`` behind the last whole unit (a chunk, or the message): bytes up to here may be
            forwarded and leave the receiver at a clean boundary. 0 if no unit ends in ``data``.

        Raises
        ------
        FramingError
            If the bytes break the framing, or go on after its end.
        """

    def eof(self) -> bool:
        """Return whether the connection's end is a proper end of this body."""


class ChunkedBody:
    """``Transfer-Encoding: chunked``; units are chunks."""

    __slots__ = ("_between", "_in_payload", "_left", "_line", "_trailer", "ended", "splittable")

    def __init__(self) -> None:
        self.ended = False
        self._between = True  # chunks: what comes next is a size line
        self.splittable = True
        self._left = 0
        self._in_payload = False
        self._trailer = False
        self._line = b""

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> int:
        """Take the next bytes; see :class:`Tracker`."""
        size = len(data)
        if self._between and data.startswith(_size_line(size)) and data.endswith(b"\r\n"):
            # what a stream nearly always brings: one whole chunk
            if payload is not None:
                payload.append(data[data.index(b"\n") + 1 : -2])
            return size
        boundary = self._parse(data, payload)
        if data:
            self._between = boundary == size and not self.ended
        return boundary

    def _parse(self, data: bytes, payload: list[bytes] | None) -> int:
        if self.ended:
            if data:
                raise FramingError(f"{len(data)} bytes after the last chunk")
            return 0
        size, at, boundary = len(data), 0, 0
        while at < size:
            if self._in_payload:
                stop = at + self._left
                if stop > size:
                    if payload is not None:
                        payload.append(data[at:])
                    self._left = stop - size
                    return boundary
                if payload is not None and stop > at:
                    payload.append(data[at:stop])
                at, self._left = stop, 0
                if data[at : at + 2] == b"\r\n" and not self._line:
                    at += 2
                else:
                    need = 2 - len(self._line)
                    self._line += data[at : at + need]
                    at += need
                    if not b"\r\n".startswith(self._line):
                        raise FramingError(f"a chunk ends with {self._line!r} instead of CRLF")
                    if len(self._line) < 2:
                        return boundary
                    self._line = b""
                self._in_payload = False
                boundary = at
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > _MAX_LINE:
                    raise FramingError("a chunk header is longer than 8 KiB")
                return boundary
            line = self._line + data[at:end] if self._line else data[at:end]
            self._line = b""
            at = end + 1
            if len(line) > _MAX_LINE:
                raise FramingError("a chunk header is longer than 8 KiB")
            if not line.endswith(b"\r"):
                raise FramingError(f"a chunk header line ends without CR: {line[:40]!r}")
            if self._trailer:
                if line == b"\r":
                    self.ended = True
                    if at < size:
                        raise FramingError(f"{size - at} bytes after the last chunk")
                    return at
                continue
            self._left = _chunk_size(line)
            if self._left:
                self._in_payload = True
            else:
                self._trailer = True
        return boundary

    def eof(self) -> bool:
        """Return whether the last chunk was seen."""
        return self.ended


@lru_cache(4096)
def _size_line(size: int) -> bytes:
    """Return how a chunk begins that takes ``size`` bytes with its line."""
    for digits in range(1, min(size - 4, 16)):
        line = b"%x\r\n" % (size - 4 - digits)
        if len(line) == digits + 2:
            return line
    return b"\n"  # no chunk has this size


def _chunk_size(line: bytes) -> int:
    digits = line[:-1].split(b";", 1)[0].rstrip(b" \t")
    if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
        raise FramingError(f"not a chunk size: {line[:40]!r}")
    return int(digits, 16)


class LengthBody:
    """``Content-Length``; the message is the unit."""

    __slots__ = ("_left", "ended", "length", "splittable")

    def __init__(self, length: int) -> None:
        self.length = length
        self._left = length
        self.ended = length == 0
        self.splittable = False

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> int:
        """Take the next bytes; see :class:`Tracker`."""
        if len(data) > self._left:
            raise FramingError(f"{len(data) - self._left} bytes after the declared length")
        self._left -= len(data)
        self.ended = self._left == 0
        if payload is not None and data:
            payload.append(data)
        return len(data)

    def eof(self) -> bool:
        """Return whether all declared bytes came."""
        return self.ended


class CloseBody:
    """A body that ends with its connection."""

    __slots__ = ("ended", "splittable")

    def __init__(self) -> None:
        self.ended = False
        self.splittable = False

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> int:
        """Take the next bytes; see :class:`Tracker`."""
        if payload is not None and data:
            payload.append(data)
        return len(data)

    def eof(self) -> bool:
        """End the body."""
        self.ended = True
        return True

"""Server-sent events in decoded body bytes, however they are cut. Pure."""

from __future__ import annotations

from collections.abc import Callable


class FirstEvent:
    """Finds the data of the first server-sent event that counts; comments and events without data never do.

    Parameters
    ----------
    limit : int
        Bytes to search, then it is given up. The first event of an engine may hold the prompt's token ids.
    skip : callable, optional
        Tells by its data whether an event does not count.
    """

    __slots__ = ("_buffer", "_data", "_limit", "_seen", "_skip", "data", "decided")

    def __init__(self, limit: int = 1 << 20, skip: Callable[[bytes], bool] | None = None) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._limit = limit
        self._skip = skip
        self._seen = 0
        self.decided = False
        self.data: bytes | None = None

    def feed(self, payload: bytes) -> bool:
        """Take decoded bytes; True as soon as ``data`` is known or given up (None)."""
        if self.decided:
            return True
        payload = payload[: self._limit - self._seen]
        self._buffer += payload
        self._seen += len(payload)
        while not self.decided:
            line, rest = _take_line(self._buffer)
            if line is None:
                break
            self._buffer = rest
            if not line:
                if self._data:
                    data, self._data = b"\n".join(self._data), []
                    if self._skip is None or not self._skip(data):
                        self.data, self.decided = data, True
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        if not self.decided and self._seen == self._limit:
            self.decided = True
        return self.decided


def _take_line(buffer: bytes) -> tuple[bytes | None, bytes]:
    feed, back = buffer.find(b"\n"), buffer.find(b"\r")
    if back >= 0 and (feed < 0 or back < feed):
        if back == len(buffer) - 1:
            return None, buffer  # a LF may follow
        return buffer[:back], buffer[back + (2 if feed == back + 1 else 1) :]
    if feed < 0:
        return None, buffer
    return buffer[:feed], buffer[feed + 1 :]


def split_events(payload: bytes) -> list[bytes]:
    """Return the data of every event of a whole stream; comments and events without data are none."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            events.append(b"\n".join(data))
            data = []
    return events
